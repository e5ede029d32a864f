"""The release page: drafted, filled, shown; never half. And files in generic packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway.ci.gitea import Server, publish, upload_package
from slipway.errors import ConfigError, NetworkError, RunnerError
from slipway.image.registry.auth import Credentials
from support.gitea import TOKEN, gitea
from support.services import free_port


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


def test_a_package_is_put_once_and_stays(tmp_path: Path) -> None:
    archive = tmp_path / "one.tar.zst"
    archive.write_bytes(b"bytes")
    robot = Credentials("robot", "secret")
    with gitea() as server:
        server.basic = robot.basic
        for _ in range(2):
            url = upload_package(server.url, "team", robot, "tiny-deploy", "main-1", archive)
        assert url == f"{server.url}/api/packages/team/generic/tiny-deploy/main-1/one.tar.zst"
        assert list(server.packages.values()) == [b"bytes"]


def test_a_token_that_may_write_no_package_is_told_its_scope(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"")
    with gitea() as server, pytest.raises(RunnerError, match="401") as failure:
        upload_package(server.url, "team", Credentials("a", "b"), "p", "1", tmp_path / "one")
    assert "write:package" in failure.value.remedy


def test_what_is_no_address_is_said() -> None:
    with pytest.raises(ConfigError, match="no address"):
        publish(Server("", "team/tiny", TOKEN), "v1.2.0", "", [], prerelease=False)
