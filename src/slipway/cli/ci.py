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
    links = archives.upload(made, target, os.environ.get("GITHUB_SERVER_URL", ""))
    for one in made:
        click.echo(f"{one.reference} starts {one.image}")
    for link in links:
        click.echo(link)
    _output(archives=json.dumps([*(str(one.reference) for one in made), *links]))


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


@command.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
def lint(files: tuple[Path, ...]) -> None:
    """Judge workflow FILES by what Gitea does not support; by default .gitea/workflows."""
    from slipway.build.git import find_checkout
    from slipway.ci import lint as linter

    if not files:
        folder = find_checkout(Path.cwd()).root / ".gitea/workflows"
        files = tuple(sorted(folder.glob("*.y*ml")))
    findings = linter.lint(files)
    for finding in findings:
        click.echo(str(finding))
    report = linter.actionlint(files)
    click.echo(report[1] if report else "actionlint is not installed: its checks were left out")
    wrong = sum(finding.rule.level == "error" for finding in findings)
    if wrong or (report and report[0]):
        raise RunnerError(
            f"{wrong} error(s) in {len(files)} workflow file(s)"
            + (", and actionlint found some" if report and report[0] else ""),
            "each line above says what to do instead",
        )


@command.command("dry-run")
@click.option("--registry", envvar="SLIPWAY_REGISTRY", required=True, help="Where to push to.")
@click.option("--repo", default="", help="Repository there.  [default: that of the matrix]")
@click.option("--before", default="", help="The commit that the push is said to come after.")
def dry_run(registry: str, repo: str, before: str) -> None:
    """Run the push workflow on a clone of HEAD, on this host, against --registry.

    Credentials come from SLIPWAY_REGISTRY_USERNAME and SLIPWAY_REGISTRY_PASSWORD.
    """
    import sys

    from slipway.build import matrix as matrices
    from slipway.build.git import find_checkout
    from slipway.ci import dryrun

    checkout = find_checkout(Path.cwd())
    names = ("REGISTRY_USERNAME", "REGISTRY_PASSWORD")
    secrets = {name: os.environ.get(f"SLIPWAY_{name}", "") for name in names}
    image = repo or matrices.load(checkout.root).repository
    passed = ("SLIPWAY_PYTHON", "SLIPWAY_SOURCE", "SLIPWAY_CACHE")
    env = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    env |= {name: os.environ[name] for name in passed if name in os.environ}
    done = dryrun.run(
        checkout,
        branch=checkout.branch(),
        before=before,
        variables={"SLIPWAY_REGISTRY": registry, "SLIPWAY_IMAGE": image},
        secrets=secrets,
        env={"SLIPWAY_PYTHON": sys.executable, **env},
        echo=True,
    )
    if done.code:
        raise RunnerError("the workflow failed", "the log above says where")


@command.command()
@click.option("--dry-run/--no-dry-run", envvar="DRY_RUN", default=False, help="Only say it.")
@click.option("--keep", default=10, show_default=True, help="Builds of each branch and variant.")
@click.option("--keep-days", default=14, show_default=True, help="Builds younger than this stay.")
def prune(dry_run: bool, keep: int, keep_days: int) -> None:
    """Remove old images from the registry, as `slipway image prune` does."""
    from slipway.build.catalog import Shared
    from slipway.build.prune import prune as remove
    from slipway.build.remote import Remote
    from slipway.build.run import STORE
    from slipway.image.layout import LayoutStore
    from slipway.image.registry import Registry

    checkout, target = _here()
    repository = Registry(target.registry).repository(target.repository)
    shelf = Shared(Remote(repository, LayoutStore(checkout.root / STORE)))
    verdicts = remove(shelf, checkout.root, keep=keep, keep_days=keep_days, dry_run=dry_run)
    for verdict in verdicts:
        does = "keep" if verdict.keep else "would go" if dry_run else "removed"
        click.echo(f"{does:<9}{', '.join(verdict.names)} ({verdict.why})")


@command.command()
@click.argument("tag")
def release(tag: str) -> None:
    """Publish version TAG: images of the whole matrix, archives, and the server's release page."""
    from slipway.build.wheels import cache_folder
    from slipway.ci import archives, gitea
    from slipway.ci import release as releases
    from slipway.deploy.pack import DIST

    checkout, target = _here()
    # What can be refused is refused before anything is built.
    releases.check_version(tag)
    notes = releases.changelog_section((checkout.root / "CHANGELOG.md").read_text(), tag)
    token, server = os.environ.get("RELEASE_TOKEN", ""), os.environ.get("GITHUB_SERVER_URL", "")
    if not token:
        raise RunnerError(
            "RELEASE_TOKEN is empty", "set that secret: a token with the scope write:repository"
        )
    # The alias of releases is `release-latest`; a tag's name is no branch.
    os.environ["SLIPWAY_BRANCH"] = "release"
    folder = checkout.root / DIST
    made = releases.build(checkout, tag, cache_folder(), target, folder, say=_say)
    packed = archives.make(checkout, made.images, target, folder)
    page = gitea.publish(
        gitea.Server(server, os.environ.get("GITHUB_REPOSITORY", ""), token),
        tag,
        notes,
        [*(one.path for one in packed), *made.sboms],
        prerelease="-" in tag,
    )
    click.echo(
        f"{tag}: {len(made.images)} image(s), {len(packed)} archive(s), {page.get('html_url')}"
    )
