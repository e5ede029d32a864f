"""`slipway ci`: what a workflow does around builds. It reads the variables that runners set."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slipway.errors import RunnerError, UsageError

if TYPE_CHECKING:
    from slipway.build.git import Checkout
    from slipway.image.reference import Reference

_rows = click.option(
    "--plan", "plan_json", envvar="PLAN", default="", help="The matrix that `ci plan` gave."
)


@click.group()
def command() -> None:
    """Plan, build, archive and sum up a push; lint the workflows and run them here."""


def _say(text: str) -> None:
    click.echo(f"== {text}", err=True)


def _here() -> tuple[Checkout, Reference]:
    """The checkout and where it is published; credentials are then shown to that registry alone."""
    from slipway.build import matrix as matrices
    from slipway.build.git import find_checkout
    from slipway.ci.target import resolve

    checkout = find_checkout(Path.cwd())
    target = resolve(os.environ, matrices.load(checkout.root).repository)
    os.environ["SLIPWAY_REGISTRY"] = target.registry
    # A runner checks out a commit, not a branch.
    if os.environ.get("GITHUB_REF_TYPE", "branch") == "branch" and (
        name := os.environ.get("GITHUB_REF_NAME")
    ):
        os.environ.setdefault("SLIPWAY_BRANCH", name)
    return checkout, target


def _output(**values: str) -> None:
    """Hand values on to later steps and jobs."""
    if path := os.environ.get("GITHUB_OUTPUT"):
        with Path(path).open("a") as file:
            file.writelines(f"{name}={value}\n" for name, value in values.items())


def _run_id() -> str:
    return f"{os.environ.get('GITHUB_RUN_ID', '')}.{os.environ.get('GITHUB_RUN_ATTEMPT', '1')}"


def _read(flag: str, text: str) -> Any:
    """JSON that an earlier job gave; a job that did not run gave nothing."""
    try:
        return json.loads(text) if text.strip() else None
    except ValueError as error:
        raise UsageError(f"{flag} is no JSON: {text[:80]!r}") from error


def _read_rows(plan_json: str) -> list[dict[str, str]]:
    return [dict(row) for row in (_read("--plan", plan_json) or {}).get("include", [])]


@command.command()
def preflight() -> None:
    """Say everything that this runner has wrong, at once."""
    from slipway.ci import preflight as checks

    checkout, target = _here()
    _judge(checks.check(checkout, target))


def _judge(findings: list[Any]) -> None:
    for finding in findings:
        click.echo(str(finding), err=True)
    wrong = [finding for finding in findings if finding.level == "fails"]
    if wrong:
        names = ", ".join(finding.name for finding in wrong)
        raise RunnerError(f"this runner cannot publish: {names}", "each line above has its fix")


@command.command()
@click.option("--variant", envvar="VARIANT", default="", help="This row of the matrix alone.")
@click.option("--full", envvar="FULL", is_flag=True, help="Make the dependencies anew.")
@click.option("--force", is_flag=True, help="Build HEAD even where it has an image.")
@click.option("--push/--no-push", envvar="PUSH", default=True, help="Without, only say the plan.")
def plan(variant: str, full: bool, force: bool, push: bool) -> None:
    """Look at the runner, then say which commits are built, how and why."""
    from slipway.build.wheels import cache_folder
    from slipway.ci import plan as plans
    from slipway.ci import preflight as checks

    checkout, target = _here()
    _judge(checks.check(checkout, target))
    manual = os.environ.get("GITHUB_EVENT_NAME") == "workflow_dispatch"
    found = plans.decide(
        checkout,
        cache_folder(),
        target,
        variant=variant,
        full=full,
        force=force or full or manual,
    )
    text = json.dumps(found.matrix(), separators=(",", ":"))
    why = found.why_nothing if push else "it was not asked for (push is off)"
    _output(matrix=text, any="true" if found.rows and push else "false", why=why)
    click.echo(text)
    for row in found.rows:
        _say(f"{row.variant}: {row.plan}: {row.why}; {len(row.commits.split())} commit(s)")
    if not found.rows:
        _say(f"nothing is built: {found.why_nothing}")


@command.command()
@click.option("--variant", envvar="VARIANT", required=True, help="A row of docker/matrix.toml.")
@click.option("--commits", envvar="COMMITS", default="", help="Oldest first.  [default: HEAD]")
@click.option("--full", envvar="FULL", is_flag=True, help="Make HEAD's dependencies anew.")
def build(variant: str, commits: str, full: bool) -> None:
    """Build and push one variant of every commit that still needs an image."""
    from slipway.build.wheels import cache_folder
    from slipway.ci.build import build as run

    checkout, target = _here()
    outcomes = run(
        checkout,
        variant,
        commits.split() or [checkout.commit()],
        cache_folder(),
        target,
        full=full,
        run_id=_run_id(),
        say=_say,
    )
    for outcome in outcomes:
        if outcome.built is not None:
            click.echo(json.dumps(outcome.built.to_json()))


@command.command()
@_rows
@click.option(
    "--output", type=click.Path(path_type=Path), help="Folder for the files; dist/deploy."
)
def archive(plan_json: str, output: Path | None) -> None:
    """Pack and publish the archives of the images that this run pushed."""
    from slipway.ci import archives
    from slipway.deploy.pack import DIST

    checkout, target = _here()
    made = archives.make(checkout, _results(plan_json), target, output or checkout.root / DIST)
    for one in made:
        click.echo(f"{one.reference} starts {one.image}")
    _output(archives=json.dumps([str(one.reference) for one in made]))


def _results(plan_json: str) -> list[Any]:
    from slipway.build import matrix as matrices
    from slipway.ci.results import collect
    from slipway.image.registry import Registry

    checkout, target = _here()
    repository = Registry(target.registry).repository(target.repository)
    matrix = matrices.load(checkout.root)
    return collect(checkout, matrix, repository, _read_rows(plan_json), _run_id())


@command.command()
@_rows
@click.option("--archives", envvar="ARCHIVES", default="", help="What `ci archive` published.")
@click.option("--why", envvar="WHY", default="", help="Why nothing is built, as `ci plan` said.")
def summary(plan_json: str, archives: str, why: str) -> None:
    """Write the table of what this run gave into the job summary."""
    from slipway.ci.summary import markdown

    _, target = _here()
    text = markdown(_results(plan_json), _read("--archives", archives) or [], target.name, why)
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(path).open("a") as file:
            file.write(text)
    click.echo(text)
