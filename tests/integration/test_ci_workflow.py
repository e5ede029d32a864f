"""The push workflow, run by act against a registry with a password: what a push leaves there."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import tarfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from slipway.build.attest import listed
from slipway.deploy.check import check
from slipway.deploy.compose import read_compose
from slipway.image.descriptor import Descriptor, Platform
from slipway.image.layout import LayoutStore
from slipway.image.model import sha256
from slipway.image.registry import Repository, pull_image
from slipway.image.registry.auth import Credentials
from support.gitea import TOKEN, gitea
from support.project import MATRIX, lock_line, make_base, make_wheel
from support.pushes import IMAGE, PASSWORD, ROOT, Line, line
from support.tars import extract
from support.web import web_folder

pytestmark = pytest.mark.slow
AMD64 = Platform("linux", "amd64")
CI_PAGE = (ROOT / "docs/ci.md").read_text()


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Line]:
    with line(tmp_path) as found:
        yield found


@pytest.fixture
def published(empty: Line) -> Line:
    """A line whose HEAD has its image."""
    empty.build(empty.checkout)
    assert empty.alias_commit() == empty.checkout.commit()
    return empty


def moved(log: str) -> dict[str, object]:
    """What the build job printed of its last build."""
    found = [text for text in log.splitlines() if '"bytes_pushed"' in text]
    value: dict[str, object] = json.loads(found[-1].partition("| ")[2])
    return value


def test_a_first_push_is_full_and_leaves_image_alias_and_archive(
    empty: Line, tmp_path: Path
) -> None:
    run = empty.push()
    assert run.code == 0, run.log
    assert "**full**: no deps image" in run.log
    (tag,) = empty.tags_of(empty.checkout.commit())
    image = pull_image(empty.images, tag, LayoutStore(tmp_path / "pulled"), AMD64)
    alias = empty.images.resolve("main-latest")
    assert alias is not None
    assert alias.digest == image.digest

    found = empty.archives.manifest(f"local-cpu-single-{tag}")
    assert found is not None
    layer = Descriptor.from_json(json.loads(found[1])["layers"][0])
    with empty.archives.open(layer) as file:
        content = zstandard.ZstdDecompressor().stream_reader(file).read()
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        extract(archive, tmp_path / "archive")
    (compose,) = (tmp_path / "archive").rglob("dockerserve-*.yml")
    assert f"{empty.address}/{IMAGE}@{image.digest}" in compose.read_text()
    assert not check(read_compose(compose, {"MODEL_DIR": str(tmp_path)}))

    assert PASSWORD not in run.log
    for path in (tmp_path / "registry/data").rglob("data"):
        if path.is_file():
            assert PASSWORD.encode() not in path.read_bytes()


def test_a_push_that_edits_source_is_fast_and_uploads_what_changed(published: Line) -> None:
    before = published.images.manifest("main-latest")
    assert before is not None
    had = {layer["digest"] for layer in json.loads(before[1])["layers"]}
    commit = published.edit(2)
    run = published.push()
    assert run.code == 0, run.log
    assert "**fast**" in run.log
    (tag,) = published.tags_of(commit)
    found = published.images.manifest(tag)
    assert found is not None
    manifest = json.loads(found[1])
    new = [layer["size"] for layer in manifest["layers"] if layer["digest"] not in had]
    assert moved(run.log)["bytes_pushed"] == sum(new) + manifest["config"]["size"]
    assert len(new) == 2  # the edited package, and the one that carries the version


def test_a_push_of_deploy_alone_builds_nothing(published: Line) -> None:
    tags = set(published.images.tags())
    published.project.write("deploy/local-cpu/note.md", "words\n")
    published.project.commit("deploy")
    run = published.push()
    assert run.code == 0, run.log
    assert "Nothing was built" in run.log
    assert "build-image/build]" not in run.log
    assert set(published.images.tags()) == tags


def test_a_dependency_bump_is_full_and_the_summary_names_the_package(published: Line) -> None:
    project = published.project
    big = make_wheel(project.wheels, "big", "2.6", {"big/__init__.py": b"VALUE = 'bigger'\n"})
    lock = (project.root / "docker/locks/cpu.txt").read_text().splitlines(keepends=True)
    project.write("docker/locks/cpu.txt", lock[0] + lock_line(big))
    commit = project.commit("bump")
    run = published.push()
    assert run.code == 0, run.log
    row = next(text for text in run.log.splitlines() if f"`{commit[:9]}`" in text)
    assert "**full**" in row
    assert "big 2.5 -> 2.6" in row


def test_commits_whose_runs_were_cancelled_get_their_images_from_the_next_run(
    published: Line,
) -> None:
    cancelled = [published.edit(2), published.edit(3)]
    head = published.edit(4)
    run = published.push()
    assert run.code == 0, run.log
    for commit in (*cancelled, head):
        assert len(published.tags_of(commit)) == 1
    assert published.alias_commit() == head


def test_a_failing_build_leaves_no_tag_and_says_why(published: Line) -> None:
    before = published.alias_commit()
    project = published.project
    lock = (project.root / "docker/locks/cpu.txt").read_text()
    project.write("docker/locks/cpu.txt", lock.replace("big==2.5", "big==2.9"))
    commit = project.commit("a version that nobody has")
    run = published.push()
    assert run.code != 0
    assert published.tags_of(commit) == []
    assert published.alias_commit() == before
    assert "big==2.9" in run.log
    assert "**no image**" in run.log


def test_of_two_pushes_that_race_the_newer_keeps_the_alias(published: Line) -> None:
    older = published.edit(2)
    first = published.start(published.clone("first"))
    newer = published.edit(3)
    second = published.start(published.clone("second"))
    logs = [process.communicate(timeout=120)[0] for process in (second, first)]
    assert [first.returncode, second.returncode] == [0, 0], "\n".join(logs)
    assert published.tags_of(older)
    assert published.tags_of(newer)
    assert published.alias_commit() == newer


def test_a_build_that_never_heard_of_the_newer_commit_leaves_its_alias(published: Line) -> None:
    older = published.edit(2)
    waiting = published.clone("waiting")
    newer = published.edit(3)
    published.build(published.checkout)
    published.build(waiting)
    assert published.tags_of(older)
    assert published.alias_commit() == newer


def test_an_alias_that_was_moved_between_the_look_and_the_write_ends_at_the_newer_commit(
    published: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    published.edit(2)
    waiting = published.clone("waiting")
    newer = published.edit(3)
    write = Repository.put_manifest

    def overtaken(self: Repository, data: bytes, media_type: str, name: str) -> None:
        if name == "main-latest":
            monkeypatch.setattr(Repository, "put_manifest", write)
            published.build(published.checkout)
            assert published.alias_commit() == newer
        write(self, data, media_type, name)

    monkeypatch.setattr(Repository, "put_manifest", overtaken)
    published.build(waiting)
    assert published.alias_commit() == newer


def test_a_run_that_was_killed_leaves_nothing_half_and_the_next_completes_it(
    published: Line,
) -> None:
    before = published.alias_commit()
    commit = published.edit(2)
    process = published.start(published.clone("killed"))
    assert process.stdout is not None
    for text in process.stdout:
        if f"== commit {commit[:9]}" in text:
            break
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert published.alias_commit() in (before, commit)
    run = published.push()
    assert run.code == 0, run.log
    assert published.tags_of(commit)
    assert published.alias_commit() == commit


def test_on_a_gitea_server_images_go_to_it_and_archives_are_plain_downloads_too(
    published: Line,
) -> None:
    published.edit(2)
    robot = Credentials(*published.secrets.values())
    with gitea(published.address) as server:
        server.basic = robot.basic
        run = published.run(
            "gitea", variables={}, GITHUB_SERVER_URL=server.url, GITHUB_REPOSITORY="Team/source"
        )
        assert run.code == 0, run.log
        ((path, content),) = server.packages.items()
    (tag,) = published.tags_of(published.checkout.commit())
    assert path == (
        f"/api/packages/team/generic/tiny-deploy/local-cpu-single-{tag}/"
        f"local-cpu-single-{tag}.tar.zst"
    )
    found = published.archives.manifest(f"local-cpu-single-{tag}")
    assert found is not None
    assert sha256(content) == json.loads(found[1])["layers"][0]["digest"]
    assert f"- <{server.url}{path}>" in run.log


def test_a_run_by_hand_builds_what_it_is_asked_for(published: Line) -> None:
    event = "workflow_dispatch"
    said = published.run("said", event, inputs={"variant": "cpu", "push": "false"})
    assert said.code == 0, said.log
    assert "it was not asked for (push is off)" in said.log
    assert "build-image/build]" not in said.log
    unknown = published.run("unknown", event, inputs={"variant": "gpu"})
    assert unknown.code != 0
    assert "no variant 'gpu'" in unknown.log
    full = published.run("full", event, inputs={"variant": "cpu", "full": "true", "push": "true"})
    assert full.code == 0, full.log
    assert "**full**: FULL=1 was asked for" in full.log
    assert published.alias_commit() == published.checkout.commit()


def test_the_documented_git_commands_replace_the_checkout_action(published: Line) -> None:
    (step,) = re.findall(r"(?s)replace the checkout step by:\n\n```yaml\n(.*?)```", CI_PAGE)
    path = published.project.root / ".gitea/workflows/build-image.yaml"
    checkout = re.compile(r" *- uses: actions/checkout@v4\n *with:\n *fetch-depth: 0\n")
    text, count = checkout.subn(textwrap.indent(step, " " * 6), path.read_text())
    assert count == 4
    published.project.write(".gitea/workflows/build-image.yaml", text)
    commit = published.edit(2)
    served = published.scratch / "served"
    published.project.git("clone", "--quiet", "--bare", ".", str(served / IMAGE))
    subprocess.run(["git", "update-server-info"], cwd=served / IMAGE, check=True)
    with web_folder(served) as url:
        run = published.run("git", GITHUB_SERVER_URL=url, GITHUB_REPOSITORY=IMAGE)
    assert run.code == 0, run.log
    assert published.tags_of(commit)


def test_nightly_retention_removes_what_nothing_refers_to(published: Line) -> None:
    old = published.tags_of(published.checkout.commit())
    published.edit(2)
    published.build(published.checkout)
    said = published.run("said", "workflow_dispatch", "prune.yaml", inputs={"dry-run": "true"})
    assert said.code == 0, said.log
    assert set(old) <= set(published.images.tags())
    night = published.run("night", "schedule", "prune.yaml")
    assert night.code == 0, night.log
    assert f"keep     {old[0]}" in night.log
    assert "main-latest" in published.images.tags()


def test_the_test_workflow_runs_what_the_readme_says(published: Line) -> None:
    published.project.write("Makefile", "test:\n\t@echo the suite of $(CURDIR) ran; exit $(CODE)\n")
    published.project.commit("make")
    passed = published.run("passed", "push", "test.yaml", CODE="0")
    assert passed.code == 0, passed.log
    assert " ran" in passed.log
    assert published.run("failed", "pull_request", "test.yaml", CODE="3").code != 0


def test_a_wrong_password_is_said_at_once(published: Line) -> None:
    published.edit(2)
    run = published.push(secrets={"REGISTRY_USERNAME": "robot", "REGISTRY_PASSWORD": "wr0ng-one"})
    assert run.code != 0
    assert "fails  write scope" in run.log
    assert "scope write:package" in run.log
    assert "wr0ng-one" not in run.log


def test_an_instance_that_evaluates_vars_to_nothing_is_told(published: Line) -> None:
    run = published.push(
        variables={}, env={**published.env, "GITHUB_SERVER_URL": "https://github.com"}
    )
    assert run.code != 0
    assert "no registry is named" in run.log


def test_a_version_tag_gives_images_and_a_page_and_a_second_run_changes_nothing(
    published: Line,
) -> None:
    project = published.project
    project.write("CHANGELOG.md", "# Changelog\n\n## 1.2.0\n- what is new\n")
    project.commit("release 1.2.0")
    project.git("tag", "v1.2.0")
    with gitea() as server:
        server.fail_uploads = 1
        broken = published.release("v1.2.0", server.url, TOKEN)
        assert broken.code != 0
        assert [page["draft"] for page in server.releases] == [True], broken.log
        run = published.release("v1.2.0", server.url, TOKEN)
        assert run.code == 0, run.log
        (page,) = server.releases
        assert (page["draft"], page["body"]) == (False, "- what is new")
        assert list(server.files) == [
            "local-cpu-single-v1.2.0.tar.zst",
            "tiny-v1.2.0-amd64.cdx.json",
        ]
        bill = json.loads(server.files["tiny-v1.2.0-amd64.cdx.json"])
        assert ("big", "2.5") in listed(bill)
        image = published.images.resolve("v1.2.0")
        assert image is not None
        assert published.archives.resolve("local-cpu-single-v1.2.0") is not None
        again = published.release("v1.2.0", server.url, TOKEN)
        assert again.code == 0, again.log
        assert published.images.resolve("v1.2.0") == image
    assert "v1.2.0-latest" not in published.images.tags()
    assert TOKEN not in run.log


def test_a_version_for_two_platforms_is_one_name_that_each_machine_pulls(published: Line) -> None:
    project = published.project
    project.write(
        "docker/matrix.toml", MATRIX.replace('"linux/amd64"', '"linux/amd64", "linux/arm64"')
    )
    project.write("CHANGELOG.md", "# Changelog\n\n## 1.2.0\n- two machines\n")
    project.commit("release 1.2.0")
    project.git("tag", "v1.2.0")
    make_base(project.store, project.root, "cpu-arm64")
    published.share_base("cpu-arm64")
    with gitea() as server:
        run = published.release("v1.2.0", server.url, TOKEN)
        assert run.code == 0, run.log
        assert sorted(name for name in server.files if name.endswith(".cdx.json")) == [
            "tiny-v1.2.0-amd64.cdx.json",
            "tiny-v1.2.0-arm64.cdx.json",
        ]
    named = published.images.manifest("v1.2.0")
    assert named is not None
    entries = [Descriptor.from_json(one) for one in json.loads(named[1])["manifests"]]
    assert [str(one.platform) for one in entries] == ["linux/amd64", "linux/arm64"]
    there = [published.images.resolve(f"v1.2.0-{name}") for name in ("amd64", "arm64")]
    assert [one.digest for one in there if one] == [one.digest for one in entries]
    store = LayoutStore(published.scratch / "pulled")
    for entry in entries:
        assert entry.platform is not None
        pulled = pull_image(published.images, "v1.2.0", store, entry.platform)
        assert pulled.platform == entry.platform
    archive = published.archives.manifest("local-cpu-single-v1.2.0")
    assert archive is not None
    pinned = json.loads(archive[1])["annotations"]["org.slipway.image"]
    assert pinned.endswith(f"@{named[0].digest}")


def test_a_release_without_a_word_in_the_changelog_is_refused_before_it_builds(
    published: Line,
) -> None:
    published.project.write("CHANGELOG.md", "# Changelog\n")
    published.project.commit("nothing said")
    published.project.git("tag", "v1.2.0")
    with gitea() as server:
        run = published.release("v1.2.0", server.url, TOKEN)
        assert server.releases == []
    assert run.code != 0
    assert "no section for v1.2.0" in run.log
    assert "v1.2.0" not in published.images.tags()
