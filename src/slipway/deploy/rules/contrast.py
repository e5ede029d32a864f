"""Holds "the only difference to FILE is …" against what really differs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from keel.args.knowledge import Launch
from slipway.deploy.compose import ComposeFile, read_compose
from slipway.deploy.scene import Scene, Seen
from slipway.errors import ConfigError

_CLAIM = re.compile(r"唯一差异|唯一区别|[Oo]nly differ(?:ence|s)")
_FILE = re.compile(r"[\w.-]+\.ya?ml")
# Two files of one host always differ in these.
_PLACE = frozenset(("port", "disaggregation-bootstrap-port", "base-gpu-id"))
_PLACE_VARIABLES = frozenset(("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"))


def contrast(file: ComposeFile, scene: Scene) -> Iterator[tuple[int, str]]:
    """(line, what else differs) for each such claim whose other file can be read."""
    comments = file.comments
    for index, comment in enumerate(comments):
        claim = _CLAIM.search(comment.text)
        if claim is None:
            continue
        other = _other(comment.text[: claim.start()], file, scene) or (
            _other(comments[index - 1].text, file, scene) if index else None
        )
        if other is None:
            continue
        said = comment.text[claim.end() :]
        if not re.search(r"[。.]\s*$", said) and index + 1 < len(comments):
            following = comments[index + 1]
            if following.line == comment.line + 1:
                said += " " + following.text
        named = {name.rstrip("-") for name in re.findall(r"--([a-z][a-z0-9-]*)", said)}
        surplus = _surplus(file, other, named)
        if named and surplus:
            yield (
                comment.line,
                f"the comment says that the only difference to {other.path.name} is "
                f"{', '.join(f'--{name}' for name in sorted(named))}; also different: "
                f"{', '.join(sorted(surplus))}",
            )


def _other(text: str, file: ComposeFile, scene: Scene) -> ComposeFile | None:
    names = _FILE.findall(text)
    if not names or names[-1] == file.path.name:
        return None
    known = scene.known.get(names[-1])
    if known is not None and known.path.parent == file.path.parent:
        return known
    path = file.path.parent / names[-1]
    try:
        return read_compose(path) if path.is_file() else None
    except ConfigError:
        return None


def _surplus(file: ComposeFile, other: ComposeFile, named: set[str]) -> set[str]:
    """What differs besides what is named, between each engine here and its nearest there."""
    theirs = [(seen, launch) for seen, launch in Scene((other,)).engines()]
    surplus: set[str] = set()
    for seen, launch in Scene((file,)).engines():
        found = [_differences(seen, launch, *each) for each in theirs]
        if found:
            nearest = min(found, key=len)
            surplus |= {each for each in nearest if each.removeprefix("--") not in named}
    return surplus


def _differences(seen: Seen, launch: Launch, other: Seen, there: Launch) -> set[str]:
    flags = {
        f"--{name}"
        for name in {*launch.flags, *there.flags} - _PLACE
        if launch.flags.get(name) != there.flags.get(name)
    }
    variables = {
        name
        for name in {*launch.env, *there.env} - _PLACE_VARIABLES
        if launch.env.get(name) != there.env.get(name)
    }
    here, their = seen.service, other.service
    rest = {
        what
        for what, differs in (
            ("image", here.image != their.image),
            ("volumes", set(here.mounts) != set(their.mounts)),
        )
        if differs
    }
    return flags | variables | rest
