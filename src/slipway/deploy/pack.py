"""From a topology and an image's digest to the archive that an operator downloads."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from slipway.deploy import archive
from slipway.deploy.built import LOOPBACK, PinnedImage
from slipway.deploy.load import VARIABLE
from slipway.deploy.model import SitePlan, Topology
from slipway.deploy.render import GRACE, file_name, render
from slipway.deploy.settings import write_env
from slipway.errors import UsageError
from slipway.image.reference import Reference

# Where archives lie in a checkout.
DIST = Path("dist/deploy")


@dataclass(frozen=True)
class Packed:
    """An archive's file name and content, and the image that it starts."""

    name: str
    content: bytes
    image: Reference


def pack(plan: SitePlan, topology: Topology, image: PinnedImage, mtime: int) -> Packed:
    """The archive of a topology that starts `image`; equal input gives equal bytes.

    Args:
        plan: the topology's site.
        topology: what is packed.
        image: pinned by digest; its tag becomes part of the archive's name.
        mtime: seconds since 1970 that the members carry.

    Raises:
        ConfigError: the topology cannot be rendered.
    """
    folder = f"{plan.deployment(topology.name)}-{image.tag}"
    pinned = replace(image.reference, tag="")
    compose = file_name(topology)
    files = {
        compose: render(plan, topology, image=str(pinned)),
        ".env.example": _env_example(plan, compose),
        "README.md": _readme(plan, topology, pinned, folder, image.tag),
    }
    content = archive.pack(folder, {name: text.encode() for name, text in files.items()}, mtime)
    return Packed(f"{folder}{archive.SUFFIX}", content, pinned)


def source_date(commit_time: int) -> int:
    """Seconds since 1970 that reproducible files carry: SOURCE_DATE_EPOCH, else the commit's time.

    Raises:
        UsageError: SOURCE_DATE_EPOCH is no number.
    """
    text = os.environ.get("SOURCE_DATE_EPOCH", "")
    if text and not text.isdigit():
        raise UsageError(
            f"SOURCE_DATE_EPOCH is {text!r}", "set it to seconds since 1970, or leave it unset"
        )
    return int(text or commit_time)


def sample_request(url: str) -> str:
    """A shell command that asks the front door one question."""
    return (
        f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d "
        '\'{"model": "default", "max_tokens": 64, "temperature": 0, '
        '"messages": [{"role": "user", "content": "What is the capital of France?"}]}\''
    )


def _env_example(plan: SitePlan, compose: str) -> str:
    """Every variable with its purpose; those that have a default are commented out."""
    blocks = [
        "# cp .env.example .env, then set what has no default.",
        f"# What `docker compose` starts in this folder.\n{write_env({'COMPOSE_FILE': compose})}",
    ]
    for variable in plan.site.variables.values():
        line = write_env({variable.name: variable.example or variable.default or ""})
        blocks.append(
            f"# {variable.purpose}\n{line if variable.default in (None, '') else f'# {line}'}"
        )
    return "\n\n".join(block.rstrip("\n") for block in blocks) + "\n"


def _readme(plan: SitePlan, topology: Topology, image: Reference, folder: str, tag: str) -> str:
    from importlib.resources import files

    from jinja2 import Environment, StrictUndefined

    site = plan.site
    door = topology.front_door
    published = {
        service.name: VARIABLE.sub(lambda m: site.variables[m[1]].default or "", service.publish)
        for service in topology.services
    }
    url = f"http://{published[door.name] or f'127.0.0.1:{door.port}'}"
    template = files("slipway.deploy").joinpath("archive_readme.md.jinja")
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    return environment.from_string(template.read_text(encoding="utf-8")).render(
        name=plan.deployment(topology.name),
        purpose=topology.purpose,
        image=str(image),
        tag=tag,
        gpus=len({gpu for service in topology.services for gpu in service.gpus}),
        loopback=image.registry == LOOPBACK,
        registry=image.registry,
        archive=f"{folder}{archive.SUFFIX}",
        variables=list(site.variables.values()),
        services=topology.services,
        published=published,
        url=url,
        sample=sample_request(url),
        grace=GRACE,
    )


def write_archive(packed: Packed, folder: Path) -> Path:
    """Write an archive below `folder`; nobody ever sees half of it.

    Raises:
        StorageError: the disk refused; nothing is left behind.
    """
    path = folder / packed.name
    archive.write(path, packed.content)
    return path
