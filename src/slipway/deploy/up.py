"""Starts an archive on this machine's Docker Engine; it runs once it has answered."""

from __future__ import annotations

import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from slipway.build.run import STORE
from slipway.deploy import archive, docker
from slipway.deploy.built import LOOPBACK
from slipway.deploy.check import check, errors
from slipway.deploy.compose import ComposeFile, ComposeService, parse_compose, variables
from slipway.deploy.engine import engine_of
from slipway.deploy.pack import DIST
from slipway.deploy.preflight import require_model, require_ports, require_settings
from slipway.deploy.rules import listening_port
from slipway.deploy.settings import read_env, write_env
from slipway.errors import DeploymentError, SlipwayError, UsageError
from slipway.image.layout import LayoutStore
from slipway.image.reference import Reference
from slipway.image.reference import parse as parse_reference
from slipway.image.serve import serve_layout

_POLL = 0.5
_PROJECT = re.compile(r"[a-z0-9][a-z0-9_-]*")
_QUESTION = "What is the capital of France?"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Running:
    """A deployment that answered.

    Attributes:
        project: its name; `down` takes it.
        folder: where it was unpacked; `docker compose` works in there.
        url: its front door.
        answer: what the model said to one request.
        seconds: from the call to the answer.
    """

    project: str
    folder: Path
    url: str
    answer: str
    seconds: float


def state_folder() -> Path:
    """Where deployments are unpacked: `$XDG_STATE_HOME/slipway/deploy`."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "slipway" / "deploy"


def find_archive(what: str, start: Path) -> Path:
    """The archive that a path or a deployment's name means; of several, the one written last.

    Raises:
        UsageError: there is none.
    """
    if what.endswith(archive.SUFFIX) or "/" in what:
        return Path(what)
    from slipway.deploy.load import find_root

    folder = find_root(start) / DIST
    found = list(folder.glob(f"{what}-*{archive.SUFFIX}"))
    if not found:
        raise UsageError(
            f"{folder} has no archive of {what!r}",
            f"make image writes one, and so does slipway deploy pack {what}",
        )
    return max(found, key=lambda path: (path.stat().st_mtime_ns, path.name))


def find_store(path: Path, start: Path) -> Path | None:
    """The layout store of the checkout that an archive lies in, or else of the one we are in."""
    for folder in (*path.resolve().parents, start, *start.parents):
        if (folder / STORE / "index.json").is_file():
            return folder / STORE
    return None


def up(
    path: Path,
    settings: Mapping[str, str],
    *,
    state: Path,
    store: Path | None,
    timeout: float,
    say: Say,
) -> Running:
    """Check, unpack, pull by digest, start, wait for health, ask one question.

    What can be refused is refused before anything of a running deployment is touched. One that
    does not come up is taken down again after its logs were said.

    Args:
        path: the archive.
        settings: values of variables; they win over the environment, and that over what was set
            last time in the folder's `.env`.
        state: deployments are unpacked to folders in here.
        store: the layout store that has the image, where no registry has it.
        timeout: seconds for the pull, and again for the start.
        say: takes progress and the logs of what failed, line by line.

    Raises:
        SlipwayError: the archive is damaged, a tool is missing, or the deployment is refused or did
            not come up.
    """
    began = time.monotonic()
    _, files = archive.read(path)
    compose = _compose_file(path, files)
    text = files[compose].decode("utf-8", "replace")
    docker.require_engine()
    composer = docker.compose_command()

    project = parse_compose(text, path / compose, {}).project
    if not _PROJECT.fullmatch(project):
        raise UsageError(f"{path}: {project!r} is no project's name", "pack it anew")
    folder = state / project
    env = settle_variables(text, folder, settings)
    file = parse_compose(text, path / compose, env)
    require_settings(file, {n: p for n, p in variables(text).items() if p and not env.get(n)})
    _refuse_mistakes(file, say)
    require_model(file, "")
    require_ports(file, docker.published_ports(project))
    for reference in dict.fromkeys(service.image for service in file.services):
        _fetch_image(parse_reference(reference), store, timeout, say)
    for service in file.services:
        require_model(file, docker.image_user(service.image))

    archive.unpack(path, folder)
    archive.write(folder / ".env", write_env({"COMPOSE_FILE": compose, **env}).encode())
    before = {container.id: container.restarts for container in docker.containers(project)}
    say(f"starting {project}")
    try:
        _start([*composer, "-p", project, "-f", str(folder / compose)], folder, env, timeout)
        _await_ready(project, before, timeout)
        url = front_door(file)
        answer = _ask(url, timeout)
    except BaseException as error:
        _say_logs(project, say)
        down(project, state)
        if isinstance(error, DeploymentError):
            raise DeploymentError(
                f"{project} did not come up: {error.what}; it was taken down again", error.remedy
            ) from None
        raise
    return Running(project, folder, url, answer, time.monotonic() - began)


def down(project: str, state: Path) -> None:
    """Stop a deployment and remove its containers and its network; its folder and `.env` stay.

    Raises:
        UsageError: there is neither a folder nor a container of it.
        DeploymentError: Compose could not.
    """
    docker.require_engine()
    if not (state / project).is_dir() and not docker.containers(project):
        there = sorted(entry.name for entry in state.glob("*") if entry.is_dir())
        raise UsageError(
            f"no deployment {project} was started here",
            f"started here: {', '.join(there) or 'none'}",
        )
    done = docker.run([*docker.compose_command(), "-p", project, "down"], timeout=180)
    if done.returncode:
        raise DeploymentError(f"{project} could not be taken down: {_last_line(done.stderr)}")


def front_door(file: ComposeFile) -> str:
    """The URL that clients of a deployment use on this machine."""
    services = sorted(file.services, key=_distance)
    for service in services:
        listens = listening_port(service)
        for port in service.ports:
            if port.published is not None:
                address = port.address if port.address not in ("", "0.0.0.0", "::") else "127.0.0.1"
                host = f"[{address}]" if ":" in address else address
                return f"http://{host}:{port.published}"
        if service.network_mode == "host" and listens is not None:
            return f"http://127.0.0.1:{listens}"
    raise DeploymentError(f"{file.project} publishes no port that a client could use")


def _distance(service: ComposeService) -> int:
    """0 for a router, 1 for an engine, 2 for anything else."""
    if service.words[:1] == ("router",):
        return 0
    return 1 if engine_of(service.words) else 2


def _compose_file(path: Path, files: Mapping[str, bytes]) -> str:
    names = [name for name in files if name.startswith("dockerserve-") and name.endswith(".yml")]
    if len(names) != 1:
        raise UsageError(f"{path} holds {len(names)} Compose files, not one", "pack it anew")
    return names[0]


def settle_variables(text: str, folder: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """Values of the variables of a Compose file's text, as far as they are set anywhere.

    Args:
        text: the file.
        folder: where an earlier start left its `.env`.
        settings: what was asked for now; wins over the environment, and that over last time.

    Raises:
        UsageError: a setting is for a variable that the file does not have.
    """
    last = folder / ".env"
    before = read_env(last.read_text(encoding="utf-8")) if last.is_file() else {}
    names = variables(text)
    unknown = [name for name in settings if name not in names]
    if unknown:
        raise UsageError(
            f"this deployment has no variable {unknown[0]}", f"it has {', '.join(sorted(names))}"
        )
    found = {}
    for name in names:
        for source in (settings, os.environ, before):
            if name in source:
                found[name] = source[name]
                break
    return found


def _refuse_mistakes(file: ComposeFile, say: Say) -> None:
    findings = check(file)
    for finding in findings:
        say(str(finding))
    if wrong := errors(findings):
        raise DeploymentError(
            f"{file.project} is refused: {wrong[0].reason} [{wrong[0].rule}]", wrong[0].fix
        )


def _fetch_image(reference: Reference, store: Path | None, timeout: float, say: Say) -> None:
    name = str(reference)
    if docker.has_image(name):
        return
    if reference.registry != LOOPBACK:
        say(f"pulling {name}")
        docker.pull(name, timeout)
    elif store is None or not LayoutStore(store).has(reference.digest):
        lacks = f"{store} does not have it" if store else "no store is here"
        raise DeploymentError(
            f"image {name} was never pushed, and {lacks}",
            "run this in the checkout that built it, name its --store, or pack with --registry",
        )
    else:
        say(f"pulling {name} from {store}")
        host, _, port = LOOPBACK.rpartition(":")
        with serve_layout(store, host, int(port)):
            docker.pull(name, timeout)


def _start(words: list[str], folder: Path, env: Mapping[str, str], timeout: float) -> None:
    done = docker.run(
        [*words, "--project-directory", str(folder), "up", "--detach", "--remove-orphans"],
        env=env,
        timeout=timeout,
    )
    if done.returncode:
        raise DeploymentError(_last_line(done.stderr), "the reason is Docker's own; see the logs")


def _await_ready(project: str, before: Mapping[str, int], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while True:
        waiting = []
        there = docker.containers(project)
        if not there:
            raise DeploymentError("its containers are gone: someone else removed them")
        for container in there:
            died = container.status in ("exited", "dead", "restarting")
            if died or container.restarts > before.get(container.id, 0):
                # Once it was restarted, its exit code is forgotten.
                code = f" with exit code {container.exit_code}" if died else ""
                raise DeploymentError(
                    f"{container.service} ended while it started{code}",
                    "its last lines above say why",
                )
            if container.health == "unhealthy":
                raise DeploymentError(
                    f"{container.service} runs but fails its health check",
                    "its last lines above say why",
                )
            if not container.is_ready:
                waiting.append(container.service)
        if not waiting:
            return
        if time.monotonic() > deadline:
            raise DeploymentError(
                f"{', '.join(waiting)} not healthy within {timeout:g} s",
                "a model that takes longer to load needs --timeout SECONDS",
            )
        time.sleep(_POLL)


def _ask(url: str, timeout: float) -> str:
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": _QUESTION}],
        "max_tokens": 24,
        "temperature": 0,
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    # No proxy stands between this machine and itself.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout) as answer:
            content = json.load(answer)["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        said = error.read(500).decode("utf-8", "replace").strip()
        raise DeploymentError(f"a chat request got {error.code}: {said}") from None
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise DeploymentError(f"a chat request failed: {error}") from None
    return str(content).strip()


def _say_logs(project: str, say: Say) -> None:
    try:
        for container in docker.containers(project):
            if not container.is_ready or container.restarts:
                say(f"--- {container.service}: {container.status} {container.health}".rstrip())
                say(docker.logs(container) or container.error or "(it wrote nothing)")
    except (SlipwayError, OSError) as error:
        say(f"(no logs: {error})")


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no reason")
