"""`slipway deploy up` and `down` against a real Docker Engine, a real registry and real Compose.

What is tested is the way up, not the engine: the image is this machine's own Python with a server
of forty lines that takes keel's words, so that it is made in a second. The engine itself is started
in tests/e2e.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from slipway.deploy.built import LOOPBACK
from support.services import compose, free_port, registry

pytestmark = pytest.mark.docker

ROOT = Path(__file__).resolve().parents[2]

KEEL = '''#!/usr/bin/python -I
"""Takes keel's words and answers in its shapes."""
import http.server, json, os, signal, sys, urllib.parse

words = dict(word.split("=", 1) for word in sys.argv[2:])
model = words["--model-path"]
if not os.path.exists(model):
    sys.exit(f"error: {model} does not exist")
open("/tmp/scratch", "w").write("the one folder that is writable")
broken = open(model).read().strip()
if broken == "crash":
    sys.exit("error: this model crashes")


class Handler(http.server.BaseHTTPRequestHandler):
    def reply(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.reply(503 if broken == "sick" else 200, {"uid": os.getuid()})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if broken == "mute":
            self.reply(500, {"error": "no words"})
        else:
            self.reply(200, {"choices": [{"message": {"content": f"uid {os.getuid()}"}}]})


signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
address = words["--host"], int(words["--port"])
http.server.ThreadingHTTPServer(address, Handler).serve_forever()
'''


def python_image(tag: str) -> None:
    """This machine's Python as an image whose entry point is `KEEL`."""
    python = Path("/usr/bin/python3.11")
    if not python.exists():
        pytest.skip("Debian's python3.11 is not installed")
    listed = subprocess.run(["ldd", python], capture_output=True, text=True, check=True).stdout
    libraries = [Path(path) for path in re.findall(r"(/\S+)", listed)]
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", dereference=True) as archive:
        archive.add(python, "usr/bin/python")
        for library in libraries:
            archive.add(library, str(library).lstrip("/"))
        archive.add("/usr/lib/python3.11", "usr/lib/python3.11", filter=_needed)
        script = tarfile.TarInfo("usr/bin/keel")
        script.size, script.mode = len(KEEL.encode()), 0o755
        archive.addfile(script, io.BytesIO(KEEL.encode()))
    changes = ['ENTRYPOINT ["keel"]', "USER 10001:10001", "ENV PATH=/usr/bin", "ENV HOME=/tmp"]
    options = [word for change in changes for word in ("--change", change)]
    subprocess.run(
        ["docker", "import", *options, "-", tag],
        input=tar.getvalue(),
        capture_output=True,
        check=True,
    )


def _needed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    unneeded = ("__pycache__", "dist-packages", "config-3.11", "/test", "idlelib", "lib2to3")
    return None if any(part in member.name for part in unneeded) else member


@dataclass(frozen=True)
class Pushed:
    """The image, by digest, in a registry, and no longer in the engine."""

    registry: str
    reference: str


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pushed]:
    with registry(tmp_path_factory.mktemp("registry")) as address:
        tag = f"{address}/slipway/up-test:{uuid.uuid4().hex[:8]}"
        python_image(tag)
        try:
            subprocess.run(["docker", "push", "-q", tag], check=True, capture_output=True)
            form = ["--format", "{{index .RepoDigests 0}}"]
            inspect = ["docker", "image", "inspect", *form, tag]
            done = subprocess.run(inspect, check=True, capture_output=True, text=True)
            reference = done.stdout.strip()
        finally:
            subprocess.run(["docker", "rmi", tag], capture_output=True)
        yield Pushed(address, reference)
        subprocess.run(["docker", "rmi", reference], capture_output=True)


@dataclass(frozen=True)
class Site:
    """A checkout with a deployment of its own name: nothing else on the engine is touched."""

    root: Path
    project: str
    state: Path
    models: Path
    port: int

    def slipway(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "slipway", "deploy", *words],
            cwd=self.root,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT / "src"),
                "XDG_STATE_HOME": str(self.state),
                **env,
            },
            capture_output=True,
            text=True,
            timeout=120,
        )

    def up(self, model: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        given = ["--model-dir", str(model), "--env", f"PORT={self.port}", *words]
        return self.slipway("up", self.project, *given, **env)

    @property
    def containers(self) -> list[str]:
        label = f"label=com.docker.compose.project={self.project}"
        done = subprocess.run(
            ["docker", "ps", "-aq", "--filter", label], capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    @property
    def networks(self) -> list[str]:
        done = subprocess.run(
            ["docker", "network", "ls", "-q", "--filter", f"name={self.project}"],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split()


@pytest.fixture
def site(tmp_path: Path, pushed: Pushed) -> Iterator[Site]:
    compose()
    name = f"up{uuid.uuid4().hex[:8]}"
    root = tmp_path / "checkout"
    shutil.copytree(ROOT / "deploy" / "local-cpu", root / "deploy" / name)
    toml = root / "deploy" / name / "site.toml"
    toml.write_text(toml.read_text().replace('"local-cpu"', f'"{name}"'))
    git = ["git", "-C", str(root), "-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    models = tmp_path / "models"
    models.mkdir()
    for kind in ("good", "crash", "sick", "mute"):
        (models / f"{kind}.gguf").write_text(kind)
    here = Site(root, f"{name}-single", tmp_path / "state", models, free_port())
    packed = here.slipway("pack", here.project, "--image", pushed.reference, "--tag", "v1")
    assert packed.returncode == 0, packed.stderr
    yield here
    subprocess.run([*compose(), "-p", here.project, "down", "-t", "1"], capture_output=True)


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def test_up_starts_asks_and_prints_how_to_go_on_and_down_leaves_nothing(site: Site) -> None:
    done = site.up(site.models / "good.gguf")
    assert done.returncode == 0, done.stderr
    url = f"http://127.0.0.1:{site.port}"
    assert f"{site.project} is up at {url}" in done.stdout
    assert "it says: uid 10001" in done.stdout
    assert f"curl {url}/v1/chat/completions" in done.stdout
    assert f"slipway deploy down {site.project}" in done.stdout
    assert "pulling" in done.stderr
    assert status(f"{url}/health") == 200

    again = site.up(site.models / "good.gguf")
    assert again.returncode == 0, again.stderr
    assert len(site.containers) == 1

    folder = site.state / "slipway" / "deploy" / site.project
    plain = subprocess.run(
        [*compose(), "ps", "-q"], cwd=folder, capture_output=True, text=True, check=True
    )
    assert plain.stdout.split(), "docker compose works in the folder without slipway"

    stopped = site.slipway("down", site.project)
    assert stopped.returncode == 0, stopped.stderr
    assert (site.containers, site.networks) == ([], [])
    assert status(f"{url}/health") == 0


def test_the_sample_of_the_readme_is_answered(site: Site) -> None:
    done = site.up(site.models / "good.gguf")
    assert done.returncode == 0, done.stderr
    [sample] = [line for line in done.stdout.splitlines() if line.startswith("ask it:")]
    asked = subprocess.run(
        sample.removeprefix("ask it:"), shell=True, capture_output=True, text=True, check=True
    )
    assert "uid 10001" in asked.stdout


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("crash", "engine ended while it started"),
        ("mute", 'a chat request got 500: {"error": "no words"}'),
    ],
)
def test_what_does_not_come_up_is_shown_and_taken_down_again(
    site: Site, model: str, says: str
) -> None:
    done = site.up(site.models / f"{model}.gguf")
    assert done.returncode == 11
    assert f"{site.project} did not come up: {says}" in done.stderr
    assert "; it was taken down again" in done.stderr
    if model == "crash":
        assert "error: this model crashes" in done.stderr
    assert "Traceback" not in done.stderr
    assert (site.containers, site.networks) == ([], [])


def test_one_that_never_gets_healthy_is_given_up_after_the_timeout(site: Site) -> None:
    done = site.up(site.models / "sick.gguf", "--timeout", "8")
    assert done.returncode == 11
    assert "engine not healthy within 8 s" in done.stderr
    assert site.containers == []


def test_a_model_that_is_not_there_is_refused_before_anything_runs(site: Site) -> None:
    done = site.up(site.models / "none.gguf")
    assert done.returncode == 11
    assert f"there is no model at {site.models / 'none.gguf'}" in done.stderr
    named = site.slipway(
        "up", site.project, "--env", f"MODEL_DIR={site.models}", "--env", "MODEL=none.gguf"
    )
    assert named.returncode == 11
    assert f"engine loads {site.models / 'none.gguf'}, which does not exist" in named.stderr
    assert "has crash.gguf, good.gguf" in named.stderr
    assert not site.state.exists()


def test_without_a_model_the_variable_is_named(site: Site) -> None:
    done = site.slipway("up", site.project)
    assert done.returncode == 11
    assert f"{site.project} needs MODEL_DIR: folder on this host" in done.stderr
    assert "--model-dir PATH" in done.stderr


def test_a_model_that_the_images_user_may_not_read_is_refused(site: Site) -> None:
    secret = site.models / "good.gguf"
    secret.chmod(0o600)
    done = site.up(secret)
    assert done.returncode == 11
    assert f"runs as user 10001:10001, who may not read {secret}" in done.stderr
    assert site.containers == []


def test_a_taken_port_is_named_and_nothing_is_started(site: Site) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", site.port))
        taken.listen()
        done = site.up(site.models / "good.gguf")
    assert done.returncode == 11
    assert f"engine is to listen on 127.0.0.1:{site.port}, which is in use" in done.stderr
    assert "--env PORT=NUMBER" in done.stderr
    assert (site.containers, site.networks) == ([], [])


def test_a_failed_second_up_with_a_refusal_leaves_the_first_running(site: Site) -> None:
    first = site.up(site.models / "good.gguf")
    assert first.returncode == 0, first.stderr
    refused = site.up(site.models / "none.gguf")
    assert refused.returncode == 11
    assert status(f"http://127.0.0.1:{site.port}/health") == 200


def test_an_image_that_the_registry_does_not_have_is_named(site: Site, pushed: Pushed) -> None:
    missing = f"{pushed.registry}/slipway/up-test@sha256:{'0' * 64}"
    packed = site.slipway("pack", site.project, "--image", missing, "--tag", "v2")
    assert packed.returncode == 0, packed.stderr
    done = site.up(site.models / "good.gguf")
    assert done.returncode == 11
    assert f"image {missing} cannot be pulled" in done.stderr
    assert site.containers == []


def test_an_image_that_was_never_pushed_comes_from_the_layout_store(
    site: Site, pushed: Pushed, tmp_path: Path
) -> None:
    if not shutil.which("skopeo"):
        pytest.skip("skopeo is not installed (apt-get install skopeo)")
    store = tmp_path / "store"
    copied = ["--src-tls-verify=false", f"docker://{pushed.reference}", f"oci:{store}:v3"]
    subprocess.run(["skopeo", "copy", "--quiet", *copied], check=True)
    index = json.loads((store / "index.json").read_text())
    [stored] = [entry["digest"] for entry in index["manifests"]]
    local = f"{LOOPBACK}/slipway/{site.project}@{stored}"
    packed = site.slipway("pack", site.project, "--image", local, "--tag", "v3")
    assert packed.returncode == 0, packed.stderr

    without = site.up(site.models / "good.gguf")
    assert without.returncode == 11
    assert f"image {local} was never pushed, and no store is here" in without.stderr
    assert "pack with --registry" in without.stderr

    try:
        done = site.up(site.models / "good.gguf", "--store", str(store))
        assert done.returncode == 0, done.stderr
        assert f"pulling {local} from {store}" in done.stderr
        assert "it says: uid 10001" in done.stdout
    finally:
        site.slipway("down", site.project)
        subprocess.run(["docker", "rmi", local], capture_output=True)
    host, _, port = LOOPBACK.partition(":")
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, int(port)))
        taken.listen()
        blocked = site.up(site.models / "good.gguf", "--store", str(store))
    assert blocked.returncode == 6
    assert f"cannot serve images on {LOOPBACK}" in blocked.stderr


def test_an_unknown_variable_is_refused(site: Site) -> None:
    done = site.up(site.models / "good.gguf", "--env", "PROT=1")
    assert done.returncode == 2
    assert "has no variable PROT" in done.stderr


def test_without_a_docker_engine_the_remedy_is_to_start_one(site: Site, tmp_path: Path) -> None:
    nowhere = f"unix://{tmp_path}/none.sock"
    done = site.up(site.models / "good.gguf", DOCKER_HOST=nowhere)
    assert done.returncode == 12
    assert "the Docker Engine does not answer" in done.stderr
    assert "systemctl start docker" in done.stderr


def test_down_of_what_was_never_started_is_refused(site: Site) -> None:
    done = site.slipway("down", f"{site.project}-none")
    assert done.returncode == 2
    assert "was started here" in done.stderr
