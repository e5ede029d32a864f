"""The release page: drafted, filled, shown; never half."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway.ci.release import Server, changelog_section, check_version, publish
from slipway.errors import ConfigError, NetworkError, RunnerError, UsageError
from support.gitea import TOKEN, gitea
from support.services import free_port

CHANGELOG = """# Changelog

## Unreleased
- later

## 1.2.0 (2026-12-01)
### Added
- a thing

## 1.1.0
- old
"""


def test_the_section_of_a_version_ends_at_the_next() -> None:
    assert changelog_section(CHANGELOG, "v1.2.0") == "### Added\n- a thing"
    assert changelog_section(CHANGELOG, "v1.1.0") == "- old"


def test_a_version_without_a_section_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no section for v1\.2\.1"):
        changelog_section(CHANGELOG, "v1.2.1")


@pytest.mark.parametrize("tag", ["v1.2", "1.2.0", "v1.2.0 ", "vNext", "v1.2.0-"])
def test_other_names_are_no_versions(tag: str) -> None:
    with pytest.raises(UsageError):
        check_version(tag)


def test_a_page_carries_notes_and_files(tmp_path: Path) -> None:
    archive = tmp_path / "one.tar.zst"
    archive.write_bytes(bytes(range(256)) + b"\r\n\r\n--x")
    with gitea() as server:
        api = Server(server.url, "team/tiny", TOKEN)
        page = publish(api, "v1.2.0", "notes", [archive], prerelease=False)
        assert page["html_url"].endswith("v1.2.0")
        (release,) = server.releases
        assert (release["draft"], release["body"]) == (False, "notes")
        assert server.files == {"one.tar.zst": archive.read_bytes()}


def test_a_failed_upload_leaves_a_draft_that_the_next_run_completes(tmp_path: Path) -> None:
    files = [tmp_path / "one", tmp_path / "two"]
    for path in files:
        path.write_bytes(path.name.encode())
    with gitea() as server:
        api = Server(server.url, "team/tiny", TOKEN)
        publish(api, "v1.1.0", "old", [], prerelease=False)
        server.fail_uploads = 1
        with pytest.raises(RunnerError, match="500"):
            publish(api, "v1.2.0", "notes", files, prerelease=False)
        assert server.releases[1]["draft"]
        publish(api, "v1.2.0", "notes", files, prerelease=False)
        assert [release["draft"] for release in server.releases] == [False, False]
        assert [asset["name"] for asset in server.releases[1]["assets"]] == ["one", "two"]
        files[0].write_bytes(b"other bytes")
        publish(api, "v1.2.0", "notes", files, prerelease=False)
        assert server.files == {"one": b"other bytes", "two": b"two"}
        assert len(server.releases[1]["assets"]) == 2


def test_a_wrong_token_is_said_with_its_scope_and_never_shown() -> None:
    with gitea() as server:
        api = Server(server.url, "team/tiny", "not-the-token")
        with pytest.raises(RunnerError, match="401") as failure:
            publish(api, "v1.2.0", "", [], prerelease=False)
    assert "write:repository" in failure.value.remedy
    assert "not-the-token" not in f"{failure.value}{api!r}"


def test_a_server_that_is_not_there_is_a_network_error() -> None:
    api = Server(f"http://127.0.0.1:{free_port()}", "team/tiny", TOKEN)
    with pytest.raises(NetworkError):
        publish(api, "v1.2.0", "", [], prerelease=False)
