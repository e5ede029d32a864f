"""Four ways to write a command down: shell, `docker run`, a Compose service, Python.

The twin of these functions is in `assets/panel.js`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from slipway.cookbook.generate import Command
from slipway.cookbook.recipe import Kitchen

FORMS = {
    "shell": "Shell",
    "docker": "docker run",
    "compose": "Compose",
    "python": "Python",
}
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_AMD_DEVICES = ("/dev/kfd", "/dev/dri")


def render(kitchen: Kitchen, command: Command, form: str, node: int = 0) -> str:
    """A command of one node as text, without a line end.

    Args:
        form: a key of `FORMS`.
        node: 0 is the head node.
    """
    match form:
        case "shell":
            return _shell(command, node)
        case "docker":
            return _docker(kitchen, command, node)
        case "compose":
            return _compose(kitchen, command, node)
        case "python":
            return _python(command, node)
        case _:
            raise ValueError(f"{form!r} is none of {', '.join(FORMS)}")


def quote(word: str) -> str:
    """A word as a POSIX shell reads it back; the rule of `shlex.quote`."""
    if _PLAIN.fullmatch(word):
        return word
    return "'" + word.replace("'", "'\"'\"'") + "'"


def rows(words: Sequence[str]) -> list[list[str]]:
    """Words by line: the command first, then one flag with its value a line."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            lines.append([word])
        else:
            lines[-1].append(word)
    return [line for line in lines if line]


def join(lines: Sequence[str]) -> str:
    """Shell lines of one command."""
    return " \\\n  ".join(lines)


def shell_words(words: Sequence[str]) -> str:
    """Any command as shell lines."""
    return join([" ".join(map(quote, line)) for line in rows(words)])


def _shell(command: Command, node: int) -> str:
    env = [f"{name}={quote(value)}" for name, value in command.env]
    body = [" ".join(map(quote, line)) for line in rows(command.nodes[node].words)]
    return join([*env, *body])


def _service(command: Command, node: int) -> str:
    return command.recipe + (f"-node{node}" if len(command.nodes) > 1 else "")


def _maker(kitchen: Kitchen, command: Command) -> str:
    return kitchen.hardware[command.choices["hw"]].maker


def _published(command: Command) -> str:
    return f"{command.choices['host']}:{command.choices['port']}:{command.choices['port']}"


def _docker(kitchen: Kitchen, command: Command, node: int) -> str:
    engine, maker = kitchen.engine, _maker(kitchen, command)
    lines = ["docker run --rm", f"--name {_service(command, node)}"]
    if maker == "nvidia":
        lines.append("--gpus all")
    if maker == "amd":
        lines += [f"--device {device}" for device in _AMD_DEVICES]
        lines += ["--group-add video", "--security-opt seccomp=unconfined"]
    if engine.network == "host":
        lines.append("--network host")
    else:
        lines.append("-p " + quote(_published(command)))
    lines += [f"--ipc {engine.ipc}"] if engine.ipc else []
    lines += [f"--shm-size {engine.shm_size}"] if engine.shm_size else []
    lines += ["-v " + quote(mount) for mount in command.mounts]
    lines += ["-e " + quote(name) for name in engine.pass_env]
    lines += ["-e " + quote(f"{name}={value}") for name, value in command.env]
    lines.append(quote(command.image))
    body = [" ".join(map(quote, line)) for line in rows(command.nodes[node].container_words)]
    return join(lines + body)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _yaml(value: str) -> str:
    """A double-quoted scalar; Compose would read a single `$` as a variable."""
    return _text(value.replace("$", "$$"))


def _compose(kitchen: Kitchen, command: Command, node: int) -> str:
    engine, maker = kitchen.engine, _maker(kitchen, command)
    name = _service(command, node)
    lines = [f"name: {name}", "services:", f"  {name}:", f"    image: {_yaml(command.image)}"]
    lines.append("    command:")
    lines += [f"      - {_yaml(word)}" for word in command.nodes[node].container_words]
    if command.env or engine.pass_env:
        lines.append("    environment:")
        lines += [f"      - {_yaml(name)}" for name in engine.pass_env]
        lines += [f"      - {_yaml(f'{key}={value}')}" for key, value in command.env]
    if engine.network == "host":
        lines.append("    network_mode: host")
    else:
        lines += ["    ports:", f"      - {_yaml(_published(command))}"]
    lines += [f"    ipc: {engine.ipc}"] if engine.ipc else []
    lines += [f"    shm_size: {engine.shm_size}"] if engine.shm_size else []
    if command.mounts:
        lines.append("    volumes:")
        lines += [f"      - {_yaml(mount)}" for mount in command.mounts]
    if maker == "amd":
        lines.append("    devices:")
        lines += [f"      - {device}:{device}" for device in _AMD_DEVICES]
        lines += ["    group_add:", "      - video", "    security_opt:"]
        lines.append("      - seccomp:unconfined")
    if maker == "nvidia":
        lines += ["    deploy:", "      resources:", "        reservations:", "          devices:"]
        lines += ["            - driver: nvidia", "              count: all"]
        lines.append("              capabilities: [gpu]")
    lines.append("    restart: unless-stopped")
    return "\n".join(lines)


def _python(command: Command, node: int) -> str:
    lines = ["import os", "import subprocess", ""]
    if command.env:
        lines.append("env = os.environ | {")
        lines += [f"    {_text(name)}: {_text(value)}," for name, value in command.env]
        lines.append("}")
    else:
        lines.append("env = dict(os.environ)")
    lines.append("command = [")
    for line in rows(command.nodes[node].words):
        lines.append("    " + " ".join(f"{_text(word)}," for word in line))
    lines += ["]", "subprocess.run(command, env=env, check=True)"]
    return "\n".join(lines)
