"""The table of all topologies by axis."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from slipway.deploy.compose import ComposeFile, parse_compose, read_compose
from slipway.deploy.load import find_deployment, find_root, load_all
from slipway.deploy.model import SitePlan
from slipway.deploy.render import file_name, render

COLUMNS = ("deployment", "service", "role", "gpus", "tp", "ep", "dp", "cp", "port", "features")


def rows(plans: Mapping[str, SitePlan]) -> list[dict[str, object]]:
    """One row a service, with the names of `COLUMNS`, in the order of the sites' files."""
    return [
        {
            "deployment": plan.deployment(topology.name),
            "service": service.name,
            "role": service.role.value,
            "gpus": list(service.gpus),
            "tp": service.tp,
            "ep": service.ep,
            "dp": service.dp,
            "cp": service.cp,
            "port": service.port,
            "features": list(service.features),
        }
        for plan in plans.values()
        for topology in plan.topologies.values()
        for service in topology.services
    ]


def table(found: list[dict[str, object]]) -> str:
    """The rows for people, in columns; lists are joined by commas, - is none."""
    cells = [list(COLUMNS)] + [
        [
            ",".join(map(str, value)) or "-" if isinstance(value, list) else str(value)
            for value in (row[name] for name in COLUMNS)
        ]
        for row in found
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )


def compose_of(what: str, start: Path) -> ComposeFile:
    """The Compose file that a path or a deployment's name means.

    Raises:
        ConfigError: the file is missing or wrong.
        UsageError: no deployment has this name.
    """
    if what.endswith((".yml", ".yaml")) or "/" in what:
        return read_compose(Path(what))
    plan, topology = find_deployment(load_all(find_root(start)), what)
    return parse_compose(render(plan, topology), Path(file_name(topology)), {})
