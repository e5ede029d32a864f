"""The builders `buildx` and `buildah`: a Dockerfile makes the dependencies, where compilers run.

Of what they build only the dependencies come out, as a tar. They are laid on the base as wheels
are, with the same order, owners and times: the base's blobs stay what they were and are mounted,
not moved, and everything above (launchers, source, config, labels, tags) is the same code for all
builders. The fast path needs no builder at all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from slipway.build import base as bases
from slipway.build import context
from slipway.build.assemble import Say, skeleton
from slipway.build.lock import normalise
from slipway.build.plan import Plan
from slipway.errors import BaseError, ConfigError, IntegrityError, ToolMissingError
from slipway.image.contents import Package, note_packages
from slipway.image.layer import LayerWriter, Symlink, layer_key, safe_path, write_layer
from slipway.image.layout import LayoutStore
from slipway.image.model import Layer

BUILDERS = ("buildx", "buildah")


def layers(
    plan: Plan,
    groups: Sequence[tuple[str, tuple[str, ...]]],
    store: LayoutStore,
    cache: Path,
    say: Say,
) -> list[Layer]:
    """The dependencies as layers, one per group of packages, bottom first.

    Args:
        groups: a label and its packages each; what no package records goes with the first.

    Raises:
        ToolMissingError: the builder is not installed or not running.
        BaseError: the builder could not have the base, or a step failed; its last lines are told.
        IntegrityError: what came out holds something that cannot be in a layer.
    """
    if not store.root.is_absolute():
        store = LayoutStore(store.root.absolute())
    with tempfile.TemporaryDirectory(prefix="slipway-docker-") as name:
        folder = Path(name, "context")
        folder.mkdir()
        context.write_dependencies(plan, cache, folder)
        secret = Path(name, "pip.conf")
        secret.write_text(context.pip_configuration(os.environ))
        result = Path(name, "layer.tar")
        with base_reference(plan, store) as base:
            say(f"{plan.variant.builder}: {plan.variant.dockerfile} on {base}")
            run(plan.variant.builder, folder, secret, context.arguments(plan, base), result)
        with tarfile.open(result) as tar:
            return _layers(plan, groups, tar, store)


@contextmanager
def base_reference(plan: Plan, store: LayoutStore) -> Iterator[str]:
    """The base as a builder on this machine can pull it while the block runs.

    A base that lies in the local store only is served from there, on loopback.
    """
    if plan.base.origin.startswith("registry"):
        yield str(replace(bases.mirrored(plan.variant.base.reference), digest=plan.base.digest))
        return
    from slipway.image.serve import serve_layout

    named = store.tags().get(bases.tag(plan.variant))
    if named is None:
        raise BaseError(f"{store.root} has no {bases.tag(plan.variant)}", "slipway image base")
    with serve_layout(store.root) as host:
        yield f"{host}/{bases.tag(plan.variant)}@{named.digest}"


def run(
    builder: str, folder: Path, secret: Path, arguments: Mapping[str, str], result: Path
) -> None:
    """Build the target `layer` of the Dockerfile in `folder` into the tar `result`."""
    if builder == "buildx":
        command = ["docker", "buildx", "build", "--progress=plain", "--provenance=false"]
        command += ["--network=host", "--allow=network.host"]
    elif builder == "buildah":
        command = ["buildah", "bud", "--isolation=chroot", "--layers", "--network=host"]
        command += ["--tls-verify=false"] if "=127.0.0.1" in f"={arguments['BASE']}" else []
    else:
        raise ConfigError(
            f"there is no builder {builder!r}", f"assemble, {' or '.join(BUILDERS)} are there"
        )
    if shutil.which(command[0]) is None:
        raise ToolMissingError(f"{command[0]} is not installed", "slipway doctor")
    for key, value in sorted(arguments.items()):
        command += ["--build-arg", f"{key}={value}"]
    command += ["--secret", f"id=pip.conf,src={secret}", "--target", "layer"]
    command += ["--file", str(folder / "Dockerfile"), "--output", f"type=tar,dest={result}"]
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, errors="replace")
    if done.returncode:
        said = [line for line in (done.stderr or done.stdout).strip().splitlines() if line.strip()]
        if any("unknown command: docker buildx" in line for line in said):
            raise ToolMissingError("docker has no plugin buildx", "apt-get install docker-buildx")
        tail = "\n".join(said[-12:])
        raise BaseError(f"{builder} failed with {done.returncode}:\n{tail}", "see its words above")


def _layers(
    plan: Plan,
    groups: Sequence[tuple[str, tuple[str, ...]]],
    tar: tarfile.TarFile,
    store: LayoutStore,
) -> list[Layer]:
    made_here = {entry.path for entry in skeleton(plan)}
    members: dict[str, tarfile.TarInfo] = {}
    for member in tar:
        path = safe_path(member.name.removeprefix("./").rstrip("/") or ".", plan.variant.builder)
        if not (member.isfile() or member.issym() or member.isdir() or member.islnk()):
            raise IntegrityError(
                f"{plan.variant.builder} gave {path}, which is no file, folder or link"
            )
        if not member.isdir() and path not in made_here:
            members[path] = member
    owner, packages = _owners(tar, members)
    label_of = {name: label for label, names in groups for name in names}
    first = groups[0][0] if groups else "dependencies"
    made = []
    for label, _ in groups or [(first, ())]:
        mine = [p for p in sorted(members) if label_of.get(owner.get(p, ""), first) == label]

        def fill(writer: LayerWriter, mine: list[str] = mine) -> None:
            for path in mine:
                _add(writer, tar, path, members[path])

        layer = write_layer(
            store,
            fill,
            roots=[plan.engine.venv.lstrip("/")],
            key=layer_key("dockerfile", [plan.key.value, label], plan.matrix.compression),
            created_by=f"{plan.variant.builder}: {label}",
            compression=plan.matrix.compression,
        )
        found = [p for name, p in packages.items() if label_of.get(name, first) == label]
        made.append(note_packages(layer, found))
    return made


def _add(writer: LayerWriter, tar: tarfile.TarFile, path: str, member: tarfile.TarInfo) -> None:
    if member.issym():
        writer.add(Symlink(path, member.linkname))
        return
    stream = tar.extractfile(member)  # of a hard link: what it is a link to
    assert stream is not None
    size = tar.getmember(member.linkname).size if member.islnk() else member.size
    writer.file(path, stream, size, executable=bool(member.mode & 0o111))  # type: ignore[arg-type]


def _owners(
    tar: tarfile.TarFile, members: Mapping[str, tarfile.TarInfo]
) -> tuple[dict[str, str], dict[str, Package]]:
    """Which distribution recorded each path (PEP 376), and the distributions by name."""
    import csv
    import posixpath

    owner: dict[str, str] = {}
    packages: dict[str, Package] = {}
    for path in members:
        folder, _, file = path.rpartition("/")
        if file != "METADATA" or not folder.endswith(".dist-info"):
            continue
        package = Package.from_metadata(_text(tar, members[path]))
        name = normalise(package.name)
        packages[name] = package
        site = folder.rpartition("/")[0]
        if record := members.get(f"{folder}/RECORD"):
            for row in csv.reader(_text(tar, record).splitlines()):
                if row:
                    owner[posixpath.normpath(posixpath.join(site, row[0]))] = name
    return owner, packages


def _text(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    stream = tar.extractfile(member)
    assert stream is not None
    return stream.read().decode("utf-8", "replace")
