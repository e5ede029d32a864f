"""From a topology to plain Compose text that anyone can start without slipway."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipway.deploy.command import MASTER, command_of
from slipway.deploy.load import VARIABLE
from slipway.deploy.model import Role, Service, Site, SitePlan, Topology, Variable
from slipway.errors import UsageError

# How long a service may take to finish its requests once it is asked to stop.
GRACE = "60s"

# Runs on the container's own Python, as images carry no curl; `-I` so that nothing in the
# environment changes it. http.client, unlike urllib, ignores the variables that name a proxy.
_PROBE = (
    "import http.client as h; c = h.HTTPConnection('127.0.0.1', {port}, timeout=4); "
    "c.request('GET', '/health'); raise SystemExit(c.getresponse().status != 200)"
)

_TCP_PROBE = "import socket; socket.create_connection(('127.0.0.1', {port}), 4).close()"
_BACKUP = re.compile(r"\.(?:bak|old|orig|rej|swp|save)\b|~$|\.bak[-.\d]*$", re.IGNORECASE)


def file_name(topology: Topology) -> str:
    """The committed file's name."""
    return f"dockerserve-{topology.name}.yml"


def render(plan: SitePlan, topology: Topology, *, image: str = "") -> str:
    """The topology as Compose text: equal input gives equal bytes.

    Args:
        plan: the site that it runs on.
        topology: one of the plan's.
        image: a reference pinned by digest. Without it the file asks for the site's image variable
            and refuses to start where that is not set.

    Raises:
        ConfigError: the topology needs something that no image of this project has.
    """
    from ruamel.yaml import YAML

    site = plan.site
    document: dict[str, Any] = {
        "name": plan.deployment(topology.name),
        "services": {
            service.name: _service(plan, topology, service, image or _image_variable(site))
            for service in topology.services
        },
    }
    if configs := _configs(plan, topology):
        document["configs"] = configs
    yaml = YAML()
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    text = io.StringIO()
    yaml.dump(document, text)
    return f"{_comment(plan, topology, packed=bool(image))}{text.getvalue()}"


def drift(plans: Mapping[str, SitePlan], root: Path) -> dict[Path, str]:
    """Files that differ from what rendering gives, with the text that they should have.

    A `dockerserve-*.yml` that no topology renders any more is there with the text "".
    """
    stale: dict[Path, str] = {}
    for plan in plans.values():
        folder = root / "deploy" / plan.site.name
        refuse_backups(folder)
        wanted = {folder / file_name(t): render(plan, t) for t in plan.topologies.values()}
        for path, text in wanted.items():
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                stale[path] = text
        for path in sorted(folder.glob("dockerserve-*.yml")):
            if path not in wanted:
                stale[path] = ""
    return stale


def write_rendered(stale: Mapping[Path, str]) -> None:
    """Bring files to what `drift` says that they should be; "" removes one."""
    for path, text in stale.items():
        if text:
            path.write_text(text, encoding="utf-8")
        else:
            path.unlink()


def _image_variable(site: Site) -> str:
    return Variable(
        site.image_variable, "image to run, by digest; `slipway deploy pack` pins it"
    ).expression


def _comment(plan: SitePlan, topology: Topology, *, packed: bool) -> str:
    site = plan.site
    lines = [f"{topology.name} on {site.name}: {topology.purpose}"]
    for variable in site.variables.values():
        default = "must be set" if variable.default is None else f"default {variable.default!r}"
        lines.append(f"  {variable.name}: {variable.purpose} ({default})")
    if not packed:
        lines.append(
            f"Rendered by `slipway deploy render` from deploy/{site.name}/*.toml: change those."
        )
    return "".join(f"# {line}\n" for line in lines)


def _service(plan: SitePlan, topology: Topology, service: Service, image: str) -> dict[str, Any]:
    site = plan.site
    words, env = command_of(plan, topology, service)
    block: dict[str, Any] = {"image": image}
    if service.program:
        block["entrypoint"] = [service.program]
    if words:
        block["command"] = [_interpolated(word, site) for word in words]
    if env:
        block["environment"] = {name: _interpolated(value, site) for name, value in env.items()}
    if site.host.network == "host":
        block["network_mode"] = "host"
    if service.publish:
        block["ports"] = [f"{_interpolated(service.publish, site)}:{service.port}"]
    if service.volumes:
        block["volumes"] = [_volume(site, name) for name in service.volumes]
    features = [plan.features[name] for name in service.features]
    shared = sorted({space for feature in features for space in feature.namespaces})
    block |= dict.fromkeys(shared, "host")
    if wanted := _waits_for(plan, topology, service):
        block["depends_on"] = {name: {"condition": "service_healthy"} for name in wanted}
    configs = [config for feature in features for config in feature.configs]
    if configs:
        block["configs"] = [{"source": c.name, "target": c.target} for c in configs]
    probe = _TCP_PROBE if service.role is Role.STORE else _PROBE
    block["healthcheck"] = {
        "test": ["CMD", "python", "-I", "-c", probe.format(port=service.port)],
        "interval": "5s",
        "timeout": "5s",
        "retries": 3,
        "start_period": service.start_period,
        "start_interval": "1s",
    }
    block |= {
        "restart": "unless-stopped",
        "stop_grace_period": GRACE,
        "init": True,
        # Compose cannot put an inline config into a container whose root is read-only.
        **({} if configs else {"read_only": True}),
        "tmpfs": ["/tmp"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "logging": {"driver": "json-file", "options": {"max-size": "20m", "max-file": "5"}},
    }
    if service.shared_memory and "ipc" not in shared:
        block["shm_size"] = service.shared_memory
    if service.gpus:
        device = {
            "driver": "nvidia",
            "device_ids": [str(gpu) for gpu in service.gpus],
            "capabilities": ["gpu"],
        }
        block["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return block


def _waits_for(plan: SitePlan, topology: Topology, service: Service) -> list[str]:
    """Services that must be healthy before this one starts."""
    if service.role is Role.ROUTER:
        return [other.name for other in topology.services if other.role.is_engine]
    masters = [s.name for s in topology.having(Role.STORE) if s.program == MASTER]
    asks = any(plan.features[n].store_env or plan.features[n].configs for n in service.features)
    return [name for name in masters if name != service.name] if asks else []


def _configs(plan: SitePlan, topology: Topology) -> dict[str, dict[str, str]]:
    from ruamel.yaml.scalarstring import LiteralScalarString

    return {
        config.name: {"content": LiteralScalarString(config.content.replace("$", "$$"))}
        for service in topology.services
        for name in service.features
        for config in plan.features[name].configs
    }


def refuse_backups(folder: Path) -> None:
    """Refuse editors' and people's copies beside the data: nobody can tell which one counts.

    Raises:
        UsageError: there is one, in the folder or in an archive of it.
    """
    for path in sorted(folder.rglob("*")):
        if _BACKUP.search(path.name):
            raise UsageError(
                f"{path} is a backup copy",
                "delete it: git has the old text; what is out of use goes to archive-YYYYMMDD/ by "
                "`slipway deploy retire`",
            )


def _volume(site: Site, name: str) -> dict[str, Any]:
    volume = site.volumes[name]
    return {
        "type": "bind",
        "source": _interpolated(volume.source, site),
        "target": volume.target,
        "read_only": volume.read_only,
        "bind": {"create_host_path": False},
    }


def _interpolated(text: str, site: Site) -> str:
    """`${NAME}` as Compose's expression for the variable; every other `$` is doubled."""
    parts = re.split(VARIABLE, text)
    for index, part in enumerate(parts):
        parts[index] = site.variables[part].expression if index % 2 else part.replace("$", "$$")
    return "".join(parts)
