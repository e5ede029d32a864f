"""Whether the prefill and decode engines of a file, or of two files of one set, can pair."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from keel.args.knowledge import PAIRINGS, Launch, Pairing
from slipway.deploy.check import Found, Rule, Severity, at
from slipway.deploy.scene import Scene, Seen


def _pairs(scene: Scene) -> Iterator[tuple[Seen, Launch, Seen, Launch]]:
    """Every prefill engine with every decode engine; a finding is told at the second."""
    for one, prefill in scene.engines():
        if prefill.role == "prefill":
            for other, decode in scene.engines():
                if decode.role == "decode" and one.runs_beside(other):
                    yield one, prefill, other, decode


def _of(pairing: Pairing) -> Callable[[Scene], Iterator[Found]]:
    def find(scene: Scene) -> Iterator[Found]:
        for one, prefill, other, decode in _pairs(scene):
            for said in pairing.find(prefill, decode):
                yield at(other, f"with {one.name}: {said.what}", said.fix, one)

    return find


def _image(scene: Scene) -> Iterator[Found]:
    for one, _, other, _ in _pairs(scene):
        here, there = one.service.image, other.service.image
        if here and there and here != there:
            yield at(
                other,
                f"its prefill engine {one.name} runs {here}, it runs {there}: the handshake "
                "changes between builds",
                "run one image on both sides",
                one,
            )


def _bootstrap(scene: Scene) -> Iterator[Found]:
    opened = {launch.bootstrap_port for _, launch in scene.engines() if launch.role == "prefill"}
    prefills = [seen for seen, launch in scene.engines() if launch.role == "prefill"]
    for seen, launch in scene.engines():
        if launch.role != "decode" or not launch.has("disaggregation-bootstrap-port"):
            continue
        if prefills and launch.bootstrap_port not in opened:
            yield at(
                seen,
                f"--disaggregation-bootstrap-port {launch.bootstrap_port} on a decode engine names "
                "the prefill engine's port for requests that bring none; the prefill engines open "
                f"{', '.join(map(str, sorted(opened)))}",
                "drop it where a router names the port, or write a prefill engine's",
                prefills[0],
            )


def _namespaces(scene: Scene) -> Iterator[Found]:
    for seen, launch in scene.engines():
        if not launch.role or not launch.switched("MC_INTRANODE_NVLINK"):
            continue
        raw = seen.service.raw
        missing = [
            what
            for what, there in (
                ("ipc: host", raw.get("ipc") == "host"),
                ("pid: host", raw.get("pid") == "host"),
                ("network_mode: host", seen.on_host),
            )
            if not there
        ]
        if missing:
            yield at(
                seen,
                "MC_INTRANODE_NVLINK moves the cache by CUDA's memory handles, which another "
                f"container opens only with {', '.join(missing)}",
                f"add {', '.join(missing)}, or move the cache by tcp or rdma",
            )


RULES: tuple[Rule, ...] = (
    *(
        Rule(
            pairing.name,
            Severity.ERROR if pairing.refuses else Severity.WARNING,
            pairing.about,
            pairing.source,
            _of(pairing),
            together=True,
        )
        for pairing in PAIRINGS
    ),
    Rule(
        "pair-image",
        Severity.WARNING,
        "prefill and decode of different builds",
        "conn.py's own advice: upgrade both servers together",
        _image,
        together=True,
    ),
    Rule(
        "pair-bootstrap",
        Severity.WARNING,
        "a decode engine that names a bootstrap port which no prefill engine opens",
        "SGLang's scheduler: the flag is the default of a request's bootstrap port",
        _bootstrap,
        together=True,
    ),
    Rule(
        "nvlink-namespaces",
        Severity.ERROR,
        "a cache that moves by NVLink between containers that cannot see each other's memory",
        "CUDA IPC needs both processes in one pid and ipc namespace; all PD files of the b300 site",
        _namespaces,
    ),
)
