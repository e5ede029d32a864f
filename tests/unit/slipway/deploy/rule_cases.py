"""For every rule: files that make its mistake, and the nearest files that are right."""

from __future__ import annotations

from typing import Any

DIGEST = "sha256:" + "5" * 64
IMAGE = f"registry.example/sglang@{DIGEST}"
V41 = "/models/DeepSeek-V4.1-Flash"

Files = dict[str, dict[str, Any]]


def service(
    flags: str = "", *, model: str = "/models/m", gpus: tuple[int, ...] = (0,), **more: Any
) -> dict[str, Any]:
    """An engine that is right in everything but what is asked for; `port=0` leaves the port out."""
    port = more.pop("port", 30000)
    listen = f"--port {port} " if port else ""
    devices = [{"driver": "nvidia", "device_ids": list(map(str, gpus)), "capabilities": ["gpu"]}]
    return {
        "image": IMAGE,
        "network_mode": "host",
        "command": f"sglang serve --model-path {model} --host 0.0.0.0 {listen}{flags}",
        "volumes": ["/srv/models:/models:ro"],
        "deploy": {"resources": {"reservations": {"devices": devices}}},
        **more,
    }


def compose(name: str = "p", **services: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "services": services}


def one(flags: str = "", **more: Any) -> Files:
    """A set of one file with one engine."""
    return {"compose.yml": compose(e=service(flags, **more))}


def pair(
    prefill: str = "", decode: str = "", *, p: dict[str, Any] | None = None, **d: Any
) -> Files:
    """One file with a prefill engine on GPUs 0,1 and a decode engine on GPUs 2,3."""
    both = {"model": "/models/m"}
    return {
        "compose.yml": compose(
            p=service(
                f"--tp 2 --disaggregation-mode prefill {prefill}",
                **{**both, "gpus": (0, 1), **(p or {})},
            ),
            d=service(
                f"--tp 2 --disaggregation-mode decode {decode}",
                **{**both, "gpus": (2, 3), "port": 30001, **d},
            ),
        )
    }


def two(here: str, first: dict[str, Any], there: str, second: dict[str, Any]) -> Files:
    return {here: first, there: second}


def without(files: Files, key: str) -> Files:
    """The file without one of its top-level keys."""
    return {name: {k: v for k, v in each.items() if k != key} for name, each in files.items()}


def bridge(flags: str = "", *, ports: list[str] | None = None, **more: Any) -> Files:
    files = one(flags, ports=["30000:30000"] if ports is None else ports, **more)
    del files["compose.yml"]["services"]["e"]["network_mode"]
    return files


def reserve(**how: Any) -> dict[str, Any]:
    device = {"driver": "nvidia", "capabilities": ["gpu"], **how}
    return {"resources": {"reservations": {"devices": [device]}}}


V41_TP4: dict[str, Any] = {"model": V41, "gpus": (0, 1, 2, 3)}
NVLINK = {"MC_INTRANODE_NVLINK": "true"}
HOST = {"ipc": "host", "pid": "host", "environment": NVLINK}
CP = "--tp 4 --enable-prefill-cp --cp-strategy interleave"
DSPARK = "--speculative-algorithm DSPARK"
REPLAY = "--enable-decoder-swa-bounded-replay"
L3 = "--enable-hierarchical-cache --hicache-storage-backend mooncake"
STORE = {"MOONCAKE_MASTER": "10.0.0.1:50051"}
ROUTER = {
    "image": IMAGE,
    "network_mode": "host",
    "command": "keel router --port 30002 --pd-disaggregation --prefill http://127.0.0.1:30000 8998"
    " --decode http://127.0.0.1:30001",
}


def routed(command: str) -> Files:
    files = pair()
    files["compose.yml"]["services"]["router"] = {**ROUTER, "command": command}
    return files


CASES: dict[str, list[tuple[Files, Files]]] = {
    "engine-flags": [
        (one("--mem-fraction-statik 0.6"), one("--a-flag-of-tomorrow 2")),
        (one("--tp two"), one("--tp 1")),
        (one("--context-length"), one("--context-length 8k")),
        (one("--api-key"), one("--api-key ${NOBODY_SET_IT}")),
    ],
    "shell-script": [
        (
            one(entrypoint=["bash", "-c"], command="sglang serve --model-path /models/m"),
            one(entrypoint=["bash", "-c"], command=["sglang serve --model-path /models/m"]),
        ),
    ],
    "parallel-sizes": [
        (
            one("--tp 4 --ep-size 3", gpus=(0, 1, 2, 3)),
            one("--tp 4 --ep-size 2", gpus=(0, 1, 2, 3)),
        ),
        (
            one("--tp 4 --dp-size 3 --enable-dp-attention", gpus=(0, 1, 2, 3)),
            one("--tp 4 --dp-size 4 --enable-dp-attention", gpus=(0, 1, 2, 3)),
        ),
    ],
    "dp-attention": [
        (
            one("--tp 2 --enable-dp-lm-head", gpus=(0, 1)),
            one("--tp 2 --attn-dp-size 2 --enable-dp-lm-head", gpus=(0, 1)),
        ),
        (
            one("--tp 2 --enable-dp-attention", gpus=(0, 1)),
            one("--tp 2 --dp 2 --enable-dp-attention", gpus=(0, 1)),
        ),
    ],
    "dspark-lm-head": [
        (
            one("--tp 4 --dp 4 --enable-dp-attention --speculative-algorithm DSPARK", **V41_TP4),
            one(
                "--tp 4 --dp 4 --enable-dp-attention --enable-dp-lm-head "
                "--speculative-algorithm DSPARK",
                **V41_TP4,
            ),
        ),
    ],
    "replay-dp": [
        (
            one(f"--tp 4 --dp 4 --enable-dp-attention {REPLAY}", **V41_TP4),
            one("--tp 4 --enable-decoder-swa-bounded-replay", **V41_TP4),
        ),
    ],
    "cp-dspark-replay": [
        (
            one(f"{CP} {DSPARK} {REPLAY}", **V41_TP4),
            one(f"{CP} --enable-decoder-swa-bounded-replay", **V41_TP4),
        ),
        (
            one(f"{CP} --speculative-algorithm=dspark {REPLAY}", **V41_TP4),
            one(f"{CP} --speculative-algorithm DSPARK", **V41_TP4),
        ),
    ],
    "encoder-replay": [
        (
            one(
                "--tp 4 --enable-encoder-swa-bounded-replay --max-running-requests 8 "
                "--chunked-prefill-size 64",
                **V41_TP4,
            ),
            one(
                "--tp 4 --enable-encoder-swa-bounded-replay --max-running-requests 8 "
                "--chunked-prefill-size 128",
                **V41_TP4,
            ),
        ),
    ],
    "prefill-cp": [
        (one("--tp 4 --enable-prefill-cp", **V41_TP4), one(CP, **V41_TP4)),
        (
            one(f"{CP} --dp 4 --enable-dp-attention", **V41_TP4),
            one("--tp 4 --dp 4 --enable-dp-attention", **V41_TP4),
        ),
        (
            one(f"{CP} --cuda-graph-backend-prefill full", **V41_TP4),
            one(
                f"{CP} --cuda-graph-backend-prefill full "
                "--json-model-override-args '{\"vision_n_layers\": 0}'",
                **V41_TP4,
            ),
        ),
    ],
    "verify-mode": [
        (
            one(environment={"SGLANG_RAGGED_VERIFY_MODE": "statik"}),
            one(environment={"SGLANG_RAGGED_VERIFY_MODE": "static"}),
        ),
    ],
    "draft-flags": [
        (
            one("--speculative-dspark-block-size 5"),
            one("--speculative-dspark-block-size 5 --speculative-algorithm DSPARK"),
        ),
    ],
    "dspark-pd": [
        (
            pair(
                "--speculative-algorithm DSPARK --tp 4",
                "--speculative-algorithm DSPARK --tp 4",
                p={"model": V41, "gpus": (0, 1, 2, 3)},
                model=V41,
                gpus=(4, 5, 6, 7),
                environment={"SGLANG_RAGGED_VERIFY_MODE": "compact"},
            ),
            pair(
                "--speculative-algorithm DSPARK --tp 4",
                "--speculative-algorithm DSPARK --tp 4",
                p={"model": V41, "gpus": (0, 1, 2, 3)},
                model=V41,
                gpus=(4, 5, 6, 7),
                environment={"SGLANG_RAGGED_VERIFY_MODE": "static"},
            ),
        ),
    ],
    "v41-features": [
        (
            one("--tp 4 --speculative-algorithm EAGLE", **V41_TP4),
            one("--tp 4 --speculative-algorithm EAGLE", gpus=(0, 1, 2, 3)),
        ),
    ],
    "dsv4-trtllm": [
        (
            one(f"{CP} --dsv4-attn-backend trtllm", **V41_TP4),
            one("--tp 4 --dsv4-attn-backend trtllm", **V41_TP4),
        ),
    ],
    "engram-table": [
        (
            one("--tp 2", model=V41, gpus=(0, 1)),
            one(
                "--tp 2",
                model=V41,
                gpus=(0, 1),
                environment={"SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE": "1"},
            ),
        ),
    ],
    "cache-tiers": [
        (
            one("--enable-hierarchical-cache --disable-radix-cache"),
            one("--enable-hierarchical-cache"),
        ),
        (pair(decode="--enable-hierarchical-cache"), pair("--enable-hierarchical-cache")),
    ],
    "cache-parts": [
        (one("--hicache-ratio 2"), one("--hicache-ratio 2 --enable-hierarchical-cache")),
    ],
    "cache-layout": [
        (
            one(
                "--enable-hierarchical-cache --hicache-mem-layout page_first_direct "
                "--hicache-io-backend kernel"
            ),
            one(
                "--enable-hierarchical-cache --hicache-mem-layout page_first_direct "
                "--hicache-io-backend direct"
            ),
        ),
    ],
    "cache-store": [(one(L3), one(L3, environment=STORE))],
    "cp-idle-check": [
        (one(f"{CP} {L3}", **V41_TP4, environment=STORE), one(f"--tp 4 {L3}", **V41_TP4,
                                                            environment=STORE)),
        (
            one(f"{CP} {L3}", **V41_TP4, environment=STORE),
            one(f"{CP} --enable-hierarchical-cache", **V41_TP4, environment=STORE),
        ),
    ],
    "hisparse": [(one("--enable-hisparse"), one("--enable-hisparse --disable-radix-cache"))],
    "text-only": [
        (
            pair("--language-model-only", "--language-model-only"),
            pair(
                "--language-model-only --tp 4",
                "--language-model-only --tp 4",
                p={"model": V41, "gpus": (0, 1, 2, 3)},
                model=V41,
                gpus=(4, 5, 6, 7),
            ),
        ),
    ],
    "role-flags": [
        (
            one("--disaggregation-bootstrap-port 9000"),
            one("--disaggregation-bootstrap-port 9000 --disaggregation-mode prefill"),
        ),
    ],
    "role-switch": [
        (
            one("--tp 2 --ep 2 --enable-pd-role-switch", gpus=(0, 1)),
            one("--tp 2 --enable-pd-role-switch", gpus=(0, 1)),
        ),
    ],
    "gpu-shared": [
        (
            {"compose.yml": compose(a=service(profiles=["x", "y"]),
                                    b=service(port=30001, profiles=["y"]))},
            {"compose.yml": compose(a=service(profiles=["x"]), b=service(profiles=["y"]))},
        ),
        (one(scale=2), one(scale=1)),
        (
            {"compose.yml": compose(a=service("--tp 2", gpus=(0, 1)),
                                    b=service("--tp 2", gpus=(1, 2), port=30001))},
            {"compose.yml": compose(a=service("--tp 2", gpus=(0, 1)),
                                    b=service("--tp 2", gpus=(2, 3), port=30001))},
        ),
        (
            two(
                "dockerserve-x-p.yml", compose("p", e=service("--disaggregation-mode prefill")),
                "dockerserve-x-d.yml",
                compose("d", f=service("--disaggregation-mode decode", port=30001)),
            ),
            two(
                "dockerserve-x-p.yml", compose("p", e=service("--disaggregation-mode prefill")),
                "dockerserve-x-d.yml",
                compose("d", f=service("--disaggregation-mode decode", port=30001, gpus=(1,))),
            ),
        ),
    ],
    "gpu-host": [(one(gpus=(8,)), one(gpus=(7,)))],
    "gpu-count": [
        (one("--tp 4", gpus=(0, 1)), one("--tp 2", gpus=(0, 1))),
        (one("--tp 2 --dp 2", gpus=(0, 1)), one("--tp 2 --dp 2", gpus=(0, 1, 2, 3))),
        (one("--tp 2 --pp 2", gpus=(0, 1)), one("--tp 2 --pp 2 --nnodes 2", gpus=(0, 1))),
    ],
    "gpu-idle": [(one("--tp 2", gpus=(0, 1, 2)), one("--tp 3", gpus=(0, 1, 2)))],
    "gpu-renumbered": [
        (
            one("--tp 2", gpus=(4, 5), environment={"CUDA_VISIBLE_DEVICES": "1,2"}),
            one("--tp 2", gpus=(4, 5), environment={"CUDA_VISIBLE_DEVICES": "0,1"}),
        ),
    ],
    "gpu-all": [
        (
            one("--tp 4", deploy=reserve(count="all"),
                environment=["CUDA_VISIBLE_DEVICES=0,1,2,3"]),
            one("--tp 8", deploy=reserve(count="all"),
                environment=["CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7"]),
        ),
        (one("--tp 4", deploy={}, gpus_=""), one("--tp 4", gpus=(0, 1, 2, 3))),
    ],
    "health-port": [
        (
            one(healthcheck={"test": ["CMD", "curl", "-f", "http://localhost:3000/health"]}),
            one(healthcheck={"test": ["CMD", "curl", "-f", "http://localhost:30000/health"]}),
        ),
        (
            one(healthcheck={"test": ["CMD-SHELL", "nc -z 127.0.0.1 3000"]}),
            one(healthcheck={"test": ["CMD-SHELL", "nc -z 127.0.0.1 30000"]}),
        ),
    ],
    "published-port": [
        (bridge(ports=["30001:30001"]), bridge(ports=["30001:30000"])),
        (one(ports=["30000:30000"]), bridge(ports=["30000:30000"])),
    ],
    "loopback-host": [
        (bridge("--host 127.0.0.1"), bridge("--host ::")),
    ],
    "taken-port": [
        (
            {"compose.yml": compose(a=service(), b=service(gpus=(1,)))},
            {"compose.yml": compose(a=service(), b=service(gpus=(1,), port=30001))},
        ),
        (
            {"compose.yml": compose(
                a=service("--disaggregation-mode prefill"),
                b=service("--disaggregation-mode prefill", gpus=(1,), port=30010))},
            {"compose.yml": compose(
                a=service("--disaggregation-mode prefill"),
                b=service("--disaggregation-mode prefill --disaggregation-bootstrap-port 8999",
                          gpus=(1,), port=30010))},
        ),
        (
            {"compose.yml": compose(
                a=service("--tp 2 --dp 2 --enable-dp-attention", gpus=(0, 1)),
                b=service("--tp 2 --dp 2 --enable-dp-attention", gpus=(2, 3), port=30003))},
            {"compose.yml": compose(
                a=service("--tp 2 --dp 2 --enable-dp-attention", gpus=(0, 1)),
                b=service("--tp 2 --dp 2 --enable-dp-attention", gpus=(2, 3), port=30010))},
        ),
        (
            two("dockerserve-x-p.yml", compose("p", e=service("--disaggregation-mode prefill")),
                "dockerserve-x-d.yml",
                compose("d", e=service("--disaggregation-mode decode", gpus=(1,)))),
            two("dockerserve-x-p.yml", compose("p", e=service("--disaggregation-mode prefill")),
                "dockerserve-x-d.yml",
                compose("d", e=service("--disaggregation-mode decode", gpus=(1,), port=30001))),
        ),
    ],
    "bootstrap-port": [
        (
            bridge("--disaggregation-mode prefill"),
            bridge("--disaggregation-mode prefill", ports=["30000:30000", "8998:8998"]),
        ),
        (
            bridge("--disaggregation-mode prefill"), one("--disaggregation-mode prefill"),
        ),
    ],
    "router-bootstrap": [
        (routed(ROUTER["command"].replace("8998", "8999")), routed(ROUTER["command"])),
    ],
    "router-worker": [
        (
            routed("keel router --port 30002 --worker-urls http://127.0.0.1:30009"),
            routed("keel router --port 30002 --worker-urls http://127.0.0.1:30000"),
        ),
    ],
    "pair-model": [
        (pair(model="/models/n"), pair(model="/models/m")),
        (pair("--json-model-override-args '{\"vision_n_layers\": 0}'"),
         pair("--json-model-override-args '{\"vision_n_layers\": 0}'",
              "--json-model-override-args '{\"vision_n_layers\":0}'")),
    ],
    "pair-draft": [
        (pair("--speculative-algorithm DSPARK"),
         pair("--speculative-algorithm DSPARK", "--speculative-algorithm DSPARK")),
        (
            pair("--speculative-algorithm DSPARK --speculative-dspark-block-size 5",
                 "--speculative-algorithm DSPARK --speculative-dspark-block-size 7"),
            pair("--speculative-algorithm DSPARK --speculative-dspark-block-size 5",
                 "--speculative-algorithm dspark --speculative-dspark-block-size=5"),
        ),
    ],
    "pair-layout": [
        (
            pair(CP, "--tp 4 --dp 2 --enable-dp-attention", p=V41_TP4, model=V41,
                 gpus=(4, 5, 6, 7)),
            pair(CP, "--tp 4 --dp 4 --enable-dp-attention", p=V41_TP4, model=V41,
                 gpus=(4, 5, 6, 7)),
        ),
        (
            pair(CP, "--tp 4 --dp 2 --enable-dp-attention", p=V41_TP4, model=V41,
                 gpus=(4, 5, 6, 7)),
            pair(CP, "--tp 4", p=V41_TP4, model=V41, gpus=(4, 5, 6, 7)),
        ),
    ],
    "pair-cache": [
        (pair("--page-size 64", "--page-size 128"), pair("--page-size 64", "--page-size 64")),
        (pair("--attention-backend dsv4", "--attention-backend fa3"),
         pair("--attention-backend dsv4", "--attention-backend dsv4")),
    ],
    "pair-transfer": [
        (pair("--disaggregation-transfer-backend nixl"),
         pair("--disaggregation-transfer-backend mooncake")),
    ],
    "pair-transport": [
        (pair(p=HOST, ipc="host", pid="host", environment={"MC_INTRA_NVLINK": "1", **NVLINK}),
         pair(p=HOST, ipc="host", pid="host", environment=NVLINK)),
    ],
    "pair-image": [
        (pair(image=f"registry.example/sglang@sha256:{'6' * 64}"), pair(image=IMAGE)),
        (
            two("dockerserve-x-p.yml", compose("p", e=service("--disaggregation-mode prefill")),
                "dockerserve-x-d.yml",
                compose("d", e=service("--disaggregation-mode decode", gpus=(1,), port=30001,
                                       image=f"registry.example/sglang@sha256:{'6' * 64}"))),
            two("dockerserve-x-p.yml", compose("p", e=service("--disaggregation-mode prefill")),
                "dockerserve-y-d.yml",
                compose("d", e=service("--disaggregation-mode decode", gpus=(1,), port=30001,
                                       image=f"registry.example/sglang@sha256:{'6' * 64}"))),
        ),
    ],
    "pair-bootstrap": [
        (pair("--disaggregation-bootstrap-port 9000", "--disaggregation-bootstrap-port 9001"),
         pair("--disaggregation-bootstrap-port 9000", "--disaggregation-bootstrap-port 9000")),
    ],
    "nvlink-namespaces": [
        (pair(p=HOST, environment=NVLINK, ipc="host"),
         pair(p=HOST, environment=NVLINK, ipc="host", pid="host")),
    ],
    "model-mount": [
        (one(volumes=["/srv/models:/model"]), one(volumes=["/srv/models/m:/models/m"])),
        (one(model="/weights/m"), one(model="org/name-on-a-hub")),
    ],
    "file-mount": [
        (
            one(L3, environment={"SGLANG_HICACHE_MOONCAKE_CONFIG_PATH": "/etc/store.json"}),
            one(
                L3,
                environment={"SGLANG_HICACHE_MOONCAKE_CONFIG_PATH": "/etc/store.json"},
                configs=[{"source": "store", "target": "/etc/store.json"}],
            ),
        ),
    ],
    "hot-patch": [
        (
            one(volumes=["/srv/models:/models", "/x/s.py:/sgl-workspace/sglang/python/s.py"]),
            one(volumes=["/srv/models:/models", "/x/cache:/root/.cache/sglang"]),
        ),
    ],
    "store-address": [
        (bridge(L3, environment={"MOONCAKE_MASTER": "127.0.0.1:50051"}),
         bridge(L3, environment={"MOONCAKE_MASTER": "store:50051"})),
    ],
    "image-pinned": [
        (one(image="registry.example/sglang:latest"), one(image="${IMAGE:?by digest}")),
        (one(image="registry.example/sglang"), one(image=f"registry.example/sglang:v1@{DIGEST}")),
    ],
    "privileged": [(one(privileged=True), one(privileged=False))],
    "pid-host": [(one(pid="host"), pair(p=HOST, **HOST))],
    "ipc-host": [(one(ipc="host"), one(ipc="private", shm_size="32gb"))],
    "shm-size": [(pair(p={**HOST, "shm_size": "32gb"}, **HOST), pair(p=HOST, **HOST))],
    "project-name": [(without(one(), "name"), one())],
    "set-project": [],
    "same-name": [
        (
            {"compose.yml": compose(a=service(container_name="n"),
                                    b=service(gpus=(1,), port=30001, container_name="n"))},
            {"compose.yml": compose(a=service(container_name="n"),
                                    b=service(gpus=(1,), port=30001, container_name="m"))},
        ),
        (
            two("dockerserve-x.yml", compose("x", e=service("--tp 4", gpus=(0, 1, 2, 3))),
                "dockerserve-x-b4.yml",
                compose("x", e=service("--tp 4", gpus=(4, 5, 6, 7), port=30001))),
            two("dockerserve-x.yml", compose("x", e=service("--tp 4", gpus=(0, 1, 2, 3))),
                "dockerserve-x-b4.yml",
                compose("x", f=service("--tp 4", gpus=(4, 5, 6, 7), port=30001))),
        ),
    ],
    "name-claims": [
        ({"dockerserve-dp4test.yml": compose(e=service("--tp 4", gpus=(0, 1, 2, 3)))},
         {"dockerserve-dp4test.yml": compose(
             e=service("--tp 4 --dp 4 --enable-dp-attention", gpus=(0, 1, 2, 3)))}),
        ({"dockerserve-x-b4.yml": compose(e=service("--tp 4", gpus=(0, 1, 2, 3)))},
         {"dockerserve-x-b4.yml": compose(e=service("--tp 4", gpus=(4, 5, 6, 7)))}),
        ({"dockerserve-x-l3.yml": compose(e=service())},
         {"dockerserve-x-l3.yml": compose(e=service(L3, environment=STORE))}),
        ({"dockerserve-2tp2.yml": compose(e=service("--tp 2", gpus=(0, 1)))},
         {"dockerserve-2tp2.yml": compose(
             e=service("--tp 2", gpus=(0, 1)), f=service("--tp 2", gpus=(2, 3), port=30001))}),
        ({"dockerserve-x-g45.yml": compose(e=service("--tp 2", gpus=(4, 6)))},
         {"dockerserve-x-g45.yml": compose(e=service("--tp 2", gpus=(4, 5)))}),
        ({"dockerserve-x-f2.yml": compose(e=service(gpus=(2,)))},
         {"dockerserve-x-f2.yml": compose(e=service(gpus=(1,)))}),
        (one(container_name="engine-dspark"),
         one("--speculative-algorithm DSPARK", container_name="engine-dspark")),
    ],
    "comment-claims": [],
}  # fmt: skip
# Reserving all GPUs by the short form, on a host that is known to have more.
CASES["gpu-all"][1] = (
    {
        "compose.yml": {
            "name": "p",
            "services": {"e": {**service("--tp 4"), "deploy": {}, "gpus": "all"}},
        }
    },
    one("--tp 4", gpus=(0, 1, 2, 3)),
)
