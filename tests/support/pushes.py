"""A small project with the repository's own workflows, a registry with a password, and pushes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from slipway.build import base as bases
from slipway.build import matrix as matrices
from slipway.build.git import Checkout
from slipway.ci import build as builds
from slipway.ci import dryrun
from slipway.image.reference import Reference
from slipway.image.registry import Registry, Repository, push_image
from support.project import IDENTITY, Project, make_project
from support.services import registry

ROOT = Path(__file__).parents[2]
USER, PASSWORD = "robot", "pa55-of-the-robot"
IMAGE = "team/tiny"


@dataclass
class Line:
    """The project, the registry that it is pushed to, and the variables of its jobs."""

    project: Project
    address: str
    scratch: Path

    @property
    def checkout(self) -> Checkout:
        return Checkout(self.project.root)

    @property
    def target(self) -> Reference:
        return Reference(IMAGE, self.address)

    @property
    def images(self) -> Repository:
        return Registry(self.address).repository(IMAGE)

    @property
    def archives(self) -> Repository:
        return Registry(self.address).repository(f"{IMAGE}-deploy")

    @property
    def env(self) -> dict[str, str]:
        return {
            "SLIPWAY_PYTHON": sys.executable,
            "SLIPWAY_SOURCE": str(ROOT / "src"),
            "SLIPWAY_CACHE": str(self.project.cache),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.project.wheels),
            "PIP_CONFIG_FILE": "/dev/null",
        }

    @property
    def secrets(self) -> dict[str, str]:
        return {"REGISTRY_USERNAME": USER, "REGISTRY_PASSWORD": PASSWORD}

    @property
    def variables(self) -> dict[str, str]:
        return {"SLIPWAY_REGISTRY": self.address, "SLIPWAY_IMAGE": IMAGE}

    def push(self, branch: str = "main", **changed: dict[str, str]) -> dryrun.Run:
        """The push workflow on HEAD, as `slipway ci dry-run` runs it."""
        given = {"variables": self.variables, "secrets": self.secrets, "env": self.env, **changed}
        return dryrun.run(self.checkout, branch=branch, before="", **given)

    def clone(self, name: str) -> Checkout:
        """HEAD as a runner has it that starts now."""
        made = dryrun.clone(self.checkout, self.scratch / name / "clone", "main")
        made.run("fetch", "--quiet", "--tags", str(self.project.root))
        made.run("remote", "set-url", "origin", str(self.project.root))
        return made

    def start(
        self,
        made: Checkout,
        event_name: str = "push",
        workflow: str = "build-image.yaml",
        *,
        inputs: Mapping[str, str] | None = None,
        ref: str = "refs/heads/main",
        secrets: Mapping[str, str] | None = None,
        variables: Mapping[str, str] | None = None,
        **env: str,
    ) -> subprocess.Popen[str]:
        """A workflow on a runner's clone, not awaited."""
        return dryrun.start(
            made,
            event_name,
            {**dryrun.push_event(made, "main", ""), "ref": ref},
            workflow=Path(".gitea/workflows", workflow),
            variables=self.variables if variables is None else variables,
            secrets={**self.secrets, **(secrets or {})},
            env={**self.env, **env},
            scratch=made.root.parent / "act",
            inputs=inputs,
        )

    def run(self, name: str, *words: str, **given: Any) -> dryrun.Run:
        """A workflow on a clone of HEAD of its own, to its end; arguments are those of `start`."""
        process = self.start(self.clone(name), *words, **given)
        log, _ = process.communicate(timeout=120)
        return dryrun.Run(process.returncode, log)

    def build(self, checkout: Checkout) -> None:
        """What the workflow's build job does for HEAD of a checkout, in this process."""
        with patch.dict(os.environ, {**self.env, "CI": "true"}):
            builds.build(
                checkout,
                "cpu",
                [checkout.commit()],
                self.project.cache,
                self.target,
                say=lambda _: None,
            )

    def release(self, tag: str, server: str, token: str) -> dryrun.Run:
        """The release workflow on a pushed tag of HEAD, with the API of `server`."""
        return self.run(
            f"release-{tag}-{len(list(self.scratch.glob('*')))}",
            "push",
            "release.yaml",
            ref=f"refs/tags/{tag}",
            secrets={"RELEASE_TOKEN": token},
            GITHUB_SERVER_URL=server,
            GITHUB_REPOSITORY=IMAGE,
            GITHUB_REF_NAME=tag,
        )

    def share_base(self, variant: str) -> None:
        """Publish the base of a variant, so that no test needs Debian's mirrors."""
        row = matrices.load(self.project.root).variant(variant)
        noted = self.project.store.read_image(bases.tag(row))
        assert noted is not None
        push_image(noted, self.images, [bases.shared_tag(row)])

    def edit(self, value: int) -> str:
        self.project.write("src/tiny/core/work.py", f"VALUE = {value}\n")
        return self.project.commit(f"value {value}")

    def tags_of(self, commit: str) -> list[str]:
        return [tag for tag in self.images.tags() if f"-{commit[:9]}-ci-" in tag]

    def alias_commit(self) -> str:
        from slipway.ci.plan import published_commit

        return published_commit(self.images, "main-latest")


@contextmanager
def line(folder: Path) -> Iterator[Line]:
    """A line with nothing published yet but the base, so that no test needs Debian's mirrors."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GITHUB_", "SLIPWAY_", "CI", "PIP_"))
    }
    login = {"SLIPWAY_REGISTRY_USERNAME": USER, "SLIPWAY_REGISTRY_PASSWORD": PASSWORD}
    with (
        patch.dict(os.environ, {**clean, **IDENTITY, **login}, clear=True),
        registry(folder / "registry", USER, PASSWORD) as address,
    ):
        project = make_project(folder)
        shutil.copytree(ROOT / ".gitea", project.root / ".gitea")
        for name in ("site.toml", "topologies.toml"):
            project.write(
                f"deploy/local-cpu/{name}", (ROOT / "deploy/local-cpu" / name).read_text()
            )
        project.commit("workflows")
        found = Line(project, address, folder / "runs")
        found.share_base("cpu")
        yield found
