"""Takes a topology out of use: its files move to `archive-YYYYMMDD/`, its table says since when."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from slipway.deploy.archive import write
from slipway.deploy.load import load_site
from slipway.deploy.model import SitePlan, Topology
from slipway.deploy.render import file_name, render
from slipway.errors import ConfigError, UsageError


def find_table(plans: Mapping[str, SitePlan], name: str) -> tuple[SitePlan, list[Topology]]:
    """The topologies of the table that `<site>-<table>` or `<site>-<topology>` means.

    Raises:
        UsageError: there is none in use, or the name is one slot's of a table with several.
    """
    for plan in plans.values():
        tables: dict[str, list[Topology]] = {}
        for topology in plan.topologies.values():
            tables.setdefault(topology.table, []).append(topology)
        for table, found in tables.items():
            if plan.deployment(table) == name:
                return plan, found
            if name in [plan.deployment(topology.name) for topology in found]:
                if len(found) > 1:
                    raise UsageError(
                        f"{name} is one of {len(found)} slots of one table",
                        f"take its slot out of [topologies.{table}] and render, "
                        f"or retire all of {plan.deployment(table)}",
                    )
                return plan, found
        for topology in plan.retired.values():
            if name in (plan.deployment(topology.table), plan.deployment(topology.name)):
                raise UsageError(f"{name} was retired on {topology.retired}")
    known = sorted({plan.deployment(t.table) for plan in plans.values() for t in _live(plan)})
    raise UsageError(f"there is no deployment {name!r}", f"known: {', '.join(known)}")


def _live(plan: SitePlan) -> list[Topology]:
    return list(plan.topologies.values())


def retire(plan: SitePlan, topologies: list[Topology], root: Path, day: str) -> list[Path]:
    """Move a table's rendered files to the archive of `day`, and note it in the table.

    Archived files stay as they were last rendered; nothing renders them again.

    Args:
        plan: the site.
        topologies: all of one table, as `find_table` gives them.
        root: of the checkout.
        day: YYYYMMDD.

    Raises:
        ConfigError: the table's header is not written as `[topologies.NAME]` on one line.
        UsageError: the archive has a file of that name already.
    """
    folder = root / "deploy" / plan.site.name
    source, table = folder / "topologies.toml", topologies[0].table
    header = re.compile(rf"^\[topologies\.{re.escape(table)}\][ \t]*(?:#.*)?$", re.MULTILINE)
    before = source.read_text(encoding="utf-8")
    after, count = header.subn(lambda m: f'{m[0]}\nretired = "{day}"', before)
    if count != 1:
        raise ConfigError(
            f"{source}: [topologies.{table}] is not a line of its own",
            f'write its header on one line, or add retired = "{day}" by hand and render',
        )
    archive = folder / f"archive-{day}"
    moves = {folder / file_name(t): archive / file_name(t) for t in topologies}
    if there := [path for path in moves.values() if path.exists()]:
        raise UsageError(f"{there[0]} exists already", "a file is retired once a day at most")
    texts = {file_name(topology): render(plan, topology) for topology in topologies}
    write(source, after.encode())
    try:
        load_site(folder)
    except ConfigError:
        write(source, before.encode())
        raise
    for old, new in moves.items():
        write(new, texts[new.name].encode())
        old.unlink(missing_ok=True)
    return list(moves.values())
