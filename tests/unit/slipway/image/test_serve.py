"""A layout store on loopback: what a Docker Engine asks is answered, and nothing else."""

from __future__ import annotations

import http.client
import json
import os
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipway.errors import NetworkError
from slipway.image.descriptor import LAYER_GZIP, MANIFEST, Platform
from slipway.image.layout import LayoutStore
from slipway.image.model import Image, Layer
from slipway.image.registry import Registry, pull_image
from slipway.image.serve import serve_layout

LAYER = os.urandom(300_000)


@pytest.fixture
def image(tmp_path: Path) -> Image:
    store = LayoutStore(tmp_path / "store")
    blob = store.put(LAYER, LAYER_GZIP)
    image = Image({"os": "linux", "architecture": "amd64"}, (Layer(blob, blob.digest, store),))
    store.write_image(image, ["v1", "v2", "v3"])
    return image


@pytest.fixture
def host(tmp_path: Path, image: Image) -> Iterator[str]:
    with serve_layout(tmp_path / "store") as address:
        yield address


def ask(
    host: str, path: str, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(host, timeout=10)
    connection.putrequest(method, path)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, {k.lower(): v for k, v in answer.getheaders()}, body


def test_an_image_is_pulled_by_tag_and_digest(host: str, image: Image, tmp_path: Path) -> None:
    repository = Registry(host).repository("any/name")
    for number, identifier in enumerate(("v1", image.digest)):
        elsewhere = LayoutStore(tmp_path / f"elsewhere{number}")
        pulled = pull_image(repository, identifier, elsewhere, Platform("linux", "amd64"))
        assert pulled.digest == image.digest


def test_head_says_what_get_gives(host: str, image: Image) -> None:
    for path in (f"/v2/a/manifests/{image.digest}", f"/v2/a/blobs/{image.digest}"):
        status, headers, body = ask(host, path)
        head = ask(host, path, "HEAD")
        assert (status, body) == (200, image.manifest_bytes)
        assert head[0] == 200
        assert head[2] == b""
        assert head[1]["content-length"] == headers["content-length"] == str(len(body))
        assert head[1]["docker-content-digest"] == image.digest
    assert ask(host, "/v2/a/manifests/v1")[1]["content-type"] == MANIFEST


def test_a_part_of_a_blob_is_served(host: str, image: Image) -> None:
    path = f"/v2/a/blobs/{image.layers[0].descriptor.digest}"
    status, headers, body = ask(host, path, Range="bytes=1000-1999")
    assert (status, body) == (206, LAYER[1000:2000])
    assert headers["content-range"] == "bytes 1000-1999/300000"
    assert ask(host, path, Range="bytes=299990-")[2] == LAYER[-10:]
    assert ask(host, path, Range="bytes=300000-")[0] == 416
    for nonsense in ("bytes=5-1", "bytes=-5", "bytes=" + "9" * 5000 + "-", "x"):
        assert ask(host, path, Range=nonsense)[0] in (200, 416)


def test_tags_come_in_pages(host: str) -> None:
    assert Registry(host).repository("a").tags() == ["v1", "v2", "v3"]
    status, headers, body = ask(host, "/v2/a/tags/list?n=2")
    assert (status, json.loads(body)["tags"]) == (200, ["v1", "v2"])
    assert 'rel="next"' in headers["link"]
    assert json.loads(ask(host, "/v2/a/tags/list?n=2&last=v2")[2])["tags"] == ["v3"]


@pytest.mark.parametrize(
    "path",
    [
        "/v2/a/blobs/sha256:../../index.json",
        "/v2/a/blobs/../../../etc/passwd",
        "/v2/a/blobs/sha256:%2e%2e%2f%2e%2e%2findex.json",
        "/v2/a/manifests/..%2f..%2findex.json",
        "/v2/../manifests/../../../etc/passwd",
        "/index.json",
        "//etc/passwd",
        "/v2/a/manifests/none",
        f"/v2/a/blobs/sha256:{'0' * 64}",
    ],
)
def test_no_path_leaves_the_store(host: str, path: str) -> None:
    status, _, body = ask(host, path)
    assert status == 404
    assert json.loads(body)["errors"]


@pytest.mark.parametrize("method", ["PUT", "POST", "PATCH", "DELETE"])
def test_nothing_can_be_written(host: str, image: Image, method: str) -> None:
    assert ask(host, f"/v2/a/manifests/{image.digest}", method)[0] == 501
    assert ask(host, f"/v2/a/manifests/{image.digest}")[0] == 200


def test_a_layer_is_no_manifest(host: str, image: Image) -> None:
    for digest in (image.layers[0].descriptor.digest, image.config_descriptor.digest):
        assert ask(host, f"/v2/a/manifests/{digest}")[0] == 404


def test_a_damaged_manifest_is_not_served(host: str, image: Image, tmp_path: Path) -> None:
    path = LayoutStore(tmp_path / "store").blob_path(image.digest)
    path.write_bytes(path.read_bytes().replace(b"linux", b"minix").replace(b"2", b"3", 1))
    assert ask(host, "/v2/a/manifests/v1")[0] == 404


def test_a_client_that_goes_away_is_no_failure(
    host: str, image: Image, capfd: pytest.CaptureFixture[str]
) -> None:
    name, _, port = host.partition(":")
    for _ in range(3):
        with socket.create_connection((name, int(port))) as client:
            blob = image.layers[0].descriptor.digest
            client.sendall(f"GET /v2/a/blobs/{blob} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            client.recv(10)
    assert ask(host, "/v2/")[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_a_taken_port_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(NetworkError, match=str(port)),
            serve_layout(tmp_path, port=port),
        ):
            pass


def test_the_port_is_free_afterwards(tmp_path: Path) -> None:
    with serve_layout(tmp_path) as address:
        urllib.request.urlopen(f"http://{address}/v2/", timeout=5).close()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://{address}/v2/", timeout=5)
