"""What is wrong with a command by itself: the engine's parser, and what flags exclude or need."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from keel.args.knowledge import CONSTRAINTS, IDLE_CHECK, Constraint
from slipway.deploy.check import Found, Rule, Severity, at
from slipway.deploy.engine import complaint, split_script
from slipway.deploy.scene import Scene


def _parser(scene: Scene) -> Iterator[Found]:
    for seen in scene.services:
        if seen.command and (said := complaint(seen.command)):
            yield at(seen, *said)


def _script(scene: Scene) -> Iterator[Found]:
    for seen in scene.services:
        if split_script(seen.service.words):
            yield at(
                seen,
                "the shell takes only the first word as its script, and starts the program "
                "without its flags",
                "write the whole script as one word: command: ['sglang serve …'], or drop the "
                "shell",
            )


def _idle_check(scene: Scene) -> Iterator[Found]:
    """As the constraint says, but where the file lays a scheduler of its own over the image's."""
    for found in _of(IDLE_CHECK)(scene):
        [seen] = [each for each in scene.services if each.name == found.service]
        patched = any(
            mount.target.endswith("managers/scheduler.py") for mount in seen.service.mounts
        )
        if not patched:
            yield found


def _of(constraint: Constraint) -> Callable[[Scene], Iterator[Found]]:
    def find(scene: Scene) -> Iterator[Found]:
        for seen, launch in scene.engines():
            for said in constraint.find(launch):
                yield at(seen, said.what, said.fix)

    return find


RULES: tuple[Rule, ...] = (
    Rule(
        "engine-flags",
        Severity.ERROR,
        "the engine's own parser refuses the command",
        "keel.args, with which the server starts; SGLang's flags by name and kind",
        _parser,
    ),
    Rule(
        "shell-script",
        Severity.ERROR,
        "a shell that gets its script in pieces",
        "POSIX, sh -c: the first word is the script, the others are $0, $1, …",
        _script,
    ),
    *(
        Rule(
            constraint.name,
            Severity.ERROR if constraint.refuses else Severity.WARNING,
            constraint.about,
            constraint.source,
            _idle_check if constraint is IDLE_CHECK else _of(constraint),
        )
        for constraint in CONSTRAINTS
    ),
)
