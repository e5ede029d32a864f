"""The matrix as a file for `docker buildx bake`: the same images, made by BuildKit as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from slipway.build import base as bases
from slipway.build import context
from slipway.build.assemble import labels
from slipway.build.git import Checkout
from slipway.build.plan import Plan

FOLDER = Path("dist/docker")


def bake_file(checkout: Checkout, plans: Iterable[Plan], cache: Path) -> dict[str, Any]:
    """Write a context per variant below `dist/docker`, and give the file that names them.

    Per variant two targets: `<variant>`, the whole image, and `<variant>-fast`, which lays the
    source on the deps image. pip's settings are a secret, mounted while it runs.
    """
    root = checkout.root
    targets: dict[str, Any] = {}
    names = []
    for plan in plans:
        name = plan.variant.name
        folder = root / FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        secret = root / FOLDER / "pip.conf"
        secret.touch(0o600)
        secret.write_text(context.pip_configuration(os.environ))
        context.write_dependencies(plan, cache, folder)
        source = context.write_source(checkout, plan, folder)
        created = datetime.fromtimestamp(plan.commit_time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        repository = plan.matrix.repository
        shared = {
            "context": str(FOLDER / name),
            "labels": labels(plan, created),
            "platforms": [str(plan.variant.platform)],
            "attest": ["type=provenance,disabled=true"],
        }
        names.append(name)
        targets[name] = {
            **shared,
            "dockerfile": "Dockerfile",
            "target": "image",
            "tags": [f"{repository}:{plan.tag}", f"{repository}:{plan.alias}"],
            "args": {**context.arguments(plan, reference(plan)), **source},
            "secret": [f"id=pip.conf,src={secret.relative_to(root)}"],
        }
        targets[f"{name}-fast"] = {
            **shared,
            "dockerfile": "Dockerfile.fast",
            "target": "image" if plan.engine.venv else "replaced",
            "tags": [f"{repository}:{plan.tag}", f"{repository}:{plan.alias}"],
            "args": {"DEPS": f"{repository}:{plan.deps_tag}", **source},
        }
    return {"group": {"default": {"targets": names}}, "target": targets}


def reference(plan: Plan) -> str:
    """The base as a Docker Engine knows it; a rootfs must be loaded into it first."""
    if plan.base.origin.startswith("registry"):
        return str(replace(bases.mirrored(plan.variant.base.reference), digest=plan.base.digest))
    return f"{plan.matrix.repository}:{bases.tag(plan.variant)}"
