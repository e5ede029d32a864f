"""A small engine in a git repository of its own: lock, wheels, base and matrix, without network.

The wheels are real wheels and pip fetches them (from a folder); the base is one layer with a single
file, so that tests of the gate and of the layers need no Debian.
"""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slipway.build import base as bases
from slipway.build import matrix as matrices
from slipway.build import rootfs
from slipway.build.run import Built, build
from slipway.image.layer import File, LayerWriter, write_layer
from slipway.image.layout import LayoutStore
from slipway.image.model import Image

MATRIX = """
default-variant = "cpu"
[image]
repository = "team/tiny"
[engine]
name = "tiny"
source = "src/tiny"
pyproject = "pyproject.toml"
extra = "engine"
root = "/opt/tiny/src"
venv = "/opt/tiny/venv"
entrypoint = ["tiny"]
[variants.cpu]
platforms = ["linux/amd64"]
python = "3.11"
glibc = "2.36"
builder = "assemble"
lock = "docker/locks/cpu.txt"
own-layer = ["big"]
forbidden = ["nvidia-*"]
[variants.cpu.base]
reference = "registry.invalid/python:3.11"
python = "/usr/local/bin/python3.11"
[variants.cpu.rootfs]
suite = "bookworm"
packages = ["python3.11"]
python = "/usr/bin/python3.11"
"""

PYPROJECT = """
[build-system]
requires = ["setuptools>=77"]
[project]
name = "tiny"
dynamic = ["version"]
dependencies = ["small>=1"]
[project.optional-dependencies]
engine = ["big>=2"]
[project.scripts]
tiny = "tiny.cli:main"
"""

SOURCE = {
    "src/tiny/__init__.py": "",
    "src/tiny/cli.py": "from tiny.core.work import VALUE\n\n\ndef main():\n    print(VALUE)\n",
    "src/tiny/core/__init__.py": "",
    "src/tiny/core/work.py": "VALUE = 1\n",
    "src/tiny/extra/__init__.py": "",
    ".gitignore": "dist/\n__pycache__/\n",
}

IDENTITY = {
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.com",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.com",
    "GIT_AUTHOR_DATE": "2026-01-02T03:04:05Z",
    "GIT_COMMITTER_DATE": "2026-01-02T03:04:05Z",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
}


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, bytes],
    *,
    requires: Sequence[str] = (),
    scripts: Mapping[str, str] | None = None,
    tag: str = "py3-none-any",
) -> Path:
    """Write a wheel (PEP 427) with a correct RECORD; gives its path."""
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {text}\n" for text in requires)
    content = {
        **files,
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}".encode()
        ),
        f"{info}/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n".encode()
        ),
    }
    if scripts:
        lines = "".join(f"{key} = {value}\n" for key, value in scripts.items())
        content[f"{info}/entry_points.txt"] = f"[console_scripts]\n{lines}".encode()
    record = ""
    for path, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        record += f"{path},sha256={digest},{len(data)}\n"
    content[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in content.items():
            info_of = zipfile.ZipInfo(member, (2026, 1, 1, 0, 0, 0))
            archive.writestr(info_of, data, zipfile.ZIP_DEFLATED)
    return path


def lock_line(wheel: Path) -> str:
    """The line of a hashed lock for one wheel."""
    name, version, *_ = wheel.name.split("-")
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


def make_base(store: LayoutStore, root: Path, variant: str = "cpu") -> Image:
    """Put a base of one file into a store, as the rootfs that the matrix asks for."""

    def fill(writer: LayerWriter) -> None:
        writer.add(File("etc/base", b"base\n"))

    row = matrices.load(root).variant(variant)
    assert row.rootfs is not None
    layer = write_layer(store, fill, roots=["etc"], key="base", created_by="base")
    image = Image(
        config={
            "architecture": row.platform.architecture,
            "os": row.platform.os,
            "config": {"Env": ["PATH=/usr/bin:/bin"]},
        },
        layers=(layer,),
    )
    origin = rootfs.origin_of(row, row.rootfs)
    base = bases.Base(image.digest, origin, row.rootfs.python, "made for the test", image)
    store.write_image(base.noted, [bases.tag(row)], move=True)
    return image


@dataclass
class Project:
    """The repository, its store and its caches."""

    root: Path
    wheels: Path
    cache: Path
    said: list[str] = field(default_factory=list)

    @property
    def store(self) -> LayoutStore:
        return LayoutStore(self.root / "dist/images")

    def git(self, *words: str) -> str:
        done = subprocess.run(
            ["git", *words],
            cwd=self.root,
            env={**os.environ, **IDENTITY},
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def commit(self, message: str = "change") -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")

    def build(self, **options: object) -> Built:
        """`slipway image build` in this process."""
        return build(self.root, "", None, self.cache, say=self.said.append, **options)  # type: ignore[arg-type]


def make_project(folder: Path) -> Project:
    """A committed project below `folder`, with its wheels beside it."""
    project = Project(folder / "checkout", folder / "wheels", folder / "cache")
    small = make_wheel(project.wheels, "small", "1.0", {"small/__init__.py": b"VALUE = 'small'\n"})
    big = make_wheel(
        project.wheels,
        "big",
        "2.5",
        {"big/__init__.py": b"VALUE = 'big'\n", "big/data.bin": bytes(range(256)) * 40},
        requires=["small>=1", "absent; extra == 'more'", "other; sys_platform == 'win32'"],
        scripts={"big-tool": "big:main"},
    )
    for path, text in SOURCE.items():
        project.write(path, text)
    project.write("docker/matrix.toml", MATRIX)
    project.write("pyproject.toml", PYPROJECT)
    project.write("docker/locks/cpu.txt", lock_line(small) + lock_line(big))
    project.git("init", "--quiet", "--initial-branch", "main")
    project.commit("first")
    make_base(project.store, project.root)
    return project
