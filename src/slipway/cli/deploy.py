"""`slipway deploy`: render, check, list, pack, start and stop deployments."""

from __future__ import annotations

import json
from pathlib import Path

import click

from slipway.errors import ConfigError, DeploymentError, UsageError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Render, check, pack and start deployments."""


@command.command()
@click.option("--check", "only_check", is_flag=True, help="Write nothing; fail on drift.")
def render(only_check: bool) -> None:
    """Write deploy/SITE/dockerserve-*.yml from the sites' tables."""
    from slipway.deploy.load import find_root, load_all
    from slipway.deploy.render import drift, write_rendered

    root = find_root(Path.cwd())
    stale = drift(load_all(root), root)
    if only_check and stale:
        names = ", ".join(str(path.relative_to(root)) for path in stale)
        raise ConfigError(
            f"rendered files differ from their tables: {names}", "run slipway deploy render"
        )
    for path, text in stale.items():
        click.echo(f"{'wrote' if text else 'removed'} {path.relative_to(root)}")
    write_rendered(stale)


@command.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option("--env", "env", multiple=True, metavar="K=V", help="Value of a variable of the file.")
@click.option("--host-gpus", type=int, metavar="N", help="GPUs of the host; from site.toml.")
@click.option("--together", is_flag=True, help="All FILES start on one host, whatever their names.")
@click.option("--rules", "list_rules", is_flag=True, help="List the rules, and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def check(
    files: tuple[Path, ...],
    env: tuple[str, ...],
    host_gpus: int | None,
    together: bool,
    list_rules: bool,
    as_json: bool,
) -> None:
    """Judge Compose FILES before they start; by default every one under deploy/.

    Each file is judged by itself; then those whose names make them one set (the prefill and the
    decode file of one deployment, two slots of one host) are judged together.
    """
    from slipway.deploy.check import check_files, errors, read_files
    from slipway.deploy.load import find_root
    from slipway.deploy.rules import RULES
    from slipway.deploy.settings import parse_settings

    if list_rules:
        for rule in RULES:
            click.echo(f"{rule.name:<18}{rule.severity.value:<9}{rule.about} ({rule.source})")
        return
    if not files:
        files = tuple(sorted(find_root(Path.cwd()).glob("deploy/*/dockerserve-*.yml")))
    read = read_files(files, parse_settings(env))
    findings = check_files(read, host_gpus=host_gpus, together=together)
    if as_json:
        click.echo(json.dumps([finding.to_json() for finding in findings], indent=2))
    else:
        for finding in findings:
            click.echo(str(finding))
        if not findings:
            click.echo(f"{len(files)} file{'s' if len(files) != 1 else ''} checked: nothing found")
    if wrong := errors(findings):
        raise DeploymentError(
            f"{len(wrong)} error{'s' if len(wrong) != 1 else ''} in {len(files)} checked file(s)",
            "each finding above has its fix",
        )


@command.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--json", "as_json", is_flag=True, help="Print the differences as JSON.")
def diff(first: str, second: str, as_json: bool) -> None:
    """Say what differs between two deployments, by axis; each a name or a Compose file."""
    from dataclasses import asdict

    from slipway.deploy.diff import diff as compare
    from slipway.deploy.diff import words
    from slipway.deploy.listing import compose_of

    found = compare(compose_of(first, Path.cwd()), compose_of(second, Path.cwd()))
    if as_json:
        click.echo(json.dumps([asdict(difference) for difference in found], indent=2))
    else:
        click.echo("\n".join(words(found)) or "no difference")


@command.command()
@click.argument("name", metavar="SITE-TOPOLOGY")
@click.option("--day", default="", metavar="YYYYMMDD", help="Day of the archive; today.")
def retire(name: str, day: str) -> None:
    """Take a topology out of use: its files move to archive-YYYYMMDD/."""
    from datetime import UTC, datetime

    from slipway.deploy.load import find_root, load_all
    from slipway.deploy.retire import find_table
    from slipway.deploy.retire import retire as move

    root = find_root(Path.cwd())
    plan, topologies = find_table(load_all(root), name)
    for path in move(plan, topologies, root, day or datetime.now(UTC).strftime("%Y%m%d")):
        click.echo(f"moved to {path.relative_to(root)}")


@command.command("ls")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
def list_(as_json: bool) -> None:
    """List every topology of every site by axis."""
    from slipway.deploy.listing import rows, table
    from slipway.deploy.load import find_root, load_all

    found = rows(load_all(find_root(Path.cwd())))
    click.echo(json.dumps(found, indent=2) if as_json else table(found))


@command.command()
@click.argument("name", metavar="SITE-TOPOLOGY")
@click.option(
    "--image",
    default="",
    metavar="REF@DIGEST",
    help="Pin this image instead of the last built one.",
)
@click.option("--tag", default="", metavar="TAG", help="Pin the built image that has this tag.")
@click.option(
    "--registry",
    envvar="SLIPWAY_REGISTRY",
    default="",
    metavar="HOST[:PORT]",
    help="Where the image was pushed.",
)
@click.option("--repo", default="", metavar="REPOSITORY", help="The image's repository there.")
@click.option("--store", type=click.Path(path_type=Path), help="Layout store; dist/images.")
@click.option("--output", type=click.Path(path_type=Path), help="Folder to write to; dist/deploy.")
@click.option("--json", "as_json", is_flag=True, help="Print what was packed as JSON.")
@click.option("--quiet", is_flag=True, help="Print only where the archive is.")
def pack(
    name: str,
    image: str,
    tag: str,
    registry: str,
    repo: str,
    store: Path | None,
    output: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write the archive that starts a topology from an image pinned by digest.

    The default is what `slipway image build` last built on this branch. Without --registry (or
    SLIPWAY_REGISTRY) the archive takes it from here: `slipway deploy up` offers it to Docker.
    """
    from slipway.build.git import Checkout
    from slipway.build.run import STORE
    from slipway.deploy.built import find_built, pin
    from slipway.deploy.load import find_deployment, find_root, load_all
    from slipway.deploy.pack import DIST, source_date, write_archive
    from slipway.deploy.pack import pack as pack_topology
    from slipway.image.layout import LayoutStore

    root = find_root(Path.cwd())
    plan, topology = find_deployment(load_all(root), name)
    checkout = Checkout(root)
    if image:
        chosen = pin(image, tag)
    else:
        images = LayoutStore(store or root / STORE)
        chosen = find_built(
            checkout, images, plan.site, tag=tag, registry=registry, repository=repo
        )
    packed = pack_topology(plan, topology, chosen, source_date(checkout.commit_time()))
    path = write_archive(packed, output or root / DIST)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    if as_json:
        facts = {
            "archive": str(shown),
            "image": str(packed.image),
            "digest": packed.image.digest,
            "tag": chosen.tag,
            "size": len(packed.content),
        }
        click.echo(json.dumps(facts, indent=2))
    else:
        click.echo(f"archive: {shown} ({len(packed.content)} bytes)")
        if not quiet:
            click.echo(f"image:   {packed.image}")
            click.echo(f"start:   slipway deploy up {shown} --model-dir PATH")


@command.command()
@click.argument("what", metavar="ARCHIVE|SITE-TOPOLOGY")
@click.option("--model-dir", metavar="PATH", help="The model: a file or a folder.")
@click.option("--env", "env", multiple=True, metavar="K=V", help="Value of a variable.")
@click.option("--store", type=click.Path(path_type=Path), help="Layout store; dist/images.")
@click.option("--timeout", default=300.0, show_default=True, help="Seconds for the start.")
def up(
    what: str, model_dir: str | None, env: tuple[str, ...], store: Path | None, timeout: float
) -> None:
    """Start an ARCHIVE, or the newest one of a deployment, and ask it one question."""
    from slipway.deploy.pack import sample_request
    from slipway.deploy.preflight import locate_model
    from slipway.deploy.settings import parse_settings
    from slipway.deploy.up import find_archive, find_store, state_folder
    from slipway.deploy.up import up as start

    path = find_archive(what, Path.cwd())
    settings = parse_settings(env)
    if model_dir is not None:
        if not model_dir:  # what a shell makes of a command that failed
            raise UsageError("--model-dir is empty", "give a model's file or folder")
        folder, name = locate_model(Path(model_dir))
        settings = {"MODEL_DIR": str(folder), "MODEL": name, **settings}
    running = start(
        path,
        settings,
        state=state_folder(),
        store=store or find_store(path, Path.cwd()),
        timeout=timeout,
        say=lambda line: click.echo(line, err=True),
    )
    click.echo(f"{running.project} is up at {running.url} ({running.seconds:.1f} s)")
    click.echo(f"it says: {running.answer}")
    click.echo(f"ask it:  {sample_request(running.url)}")
    click.echo(f"stop it: slipway deploy down {running.project}")


@command.command()
@click.argument("name", metavar="SITE-TOPOLOGY")
def down(name: str) -> None:
    """Stop a deployment that `up` started, and remove its containers."""
    from slipway.deploy.up import down as stop
    from slipway.deploy.up import state_folder

    stop(name, state_folder())
    click.echo(f"{name} is down")
