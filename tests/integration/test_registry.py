"""The registry client against Debian's docker-registry, with Docker and skopeo as witnesses."""

from __future__ import annotations

import gzip
import io
import json
import logging
import os
import shutil
import socket
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from slipway.errors import NetworkError, RegistryError, TagTakenError
from slipway.image.descriptor import EMPTY, LAYER_GZIP, MANIFEST, Platform
from slipway.image.layout import LayoutStore
from slipway.image.model import Image, Layer, append, canonical_json, sha256
from slipway.image.reference import Reference
from slipway.image.registry import Credentials, Registry, Retries, pull_image, push_image
from slipway.image.serve import serve_layout
from support.docker_registry import (
    PASSWORD,
    USER,
    docker_registry,
    password_registry,
    tls_registry,
    token_registry,
)
from support.registries import FaultProxy, serving

AMD64 = Platform("linux", "amd64")
ANN = Credentials(USER, PASSWORD)
QUICK = Retries(attempts=4, pause=0.01, longest=0.05)


@pytest.fixture(autouse=True)
def _nobody_logged_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("", "_USERNAME", "_PASSWORD"):
        monkeypatch.delenv(f"SLIPWAY_REGISTRY{name}", raising=False)
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with docker_registry(tmp_path_factory.mktemp("registry")) as address:
        yield address


@pytest.fixture
def store(tmp_path: Path) -> LayoutStore:
    return LayoutStore(tmp_path / "store")


def make_layer(store: LayoutStore, name: str, data: bytes) -> Layer:
    """A layer with one file."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    blob = store.put(gzip.compress(tar.getvalue(), 1, mtime=0), LAYER_GZIP)
    return Layer(blob, sha256(tar.getvalue()), store)


@pytest.fixture
def image(store: LayoutStore) -> Image:
    layers = [make_layer(store, f"f{n}", os.urandom(200_000)) for n in range(4)]
    return Image({"os": "linux", "architecture": "amd64", "config": {"Cmd": ["/f0"]}}, (*layers,))


def digests(image: Image) -> set[str]:
    return {layer.descriptor.digest for layer in image.layers}


def test_an_image_goes_there_and_back(host: str, image: Image, tmp_path: Path) -> None:
    repository = Registry(host).repository("team/round-trip")
    report = push_image(image, repository, ["v1", "latest"])
    assert report.bytes_uploaded == sum(
        [image.config_descriptor.size, *(layer.descriptor.size for layer in image.layers)]
    )
    pulled = pull_image(repository, "latest", LayoutStore(tmp_path / "other"), AMD64)
    assert pulled.digest == image.digest
    assert sorted(repository.tags()) == ["latest", "v1"]


def test_an_edit_moves_its_layer_alone(host: str, image: Image, store: LayoutStore) -> None:
    repository = Registry(host).repository("team/edit")
    push_image(image, repository, ["v1"])
    edited = append(image, [make_layer(store, "f0", b"edited")])
    for known in (digests(image), ()):
        edited = replace(edited, annotations={"known": str(bool(known))})
        report = push_image(edited, repository, [f"v{len(known)}"], known=known)
        assert report.bytes_uploaded < 5000
        assert report.blobs_present >= 4


def test_another_repository_gets_the_blobs_mounted(host: str, image: Image) -> None:
    push_image(image, Registry(host).repository("base/image"), ["v1"])
    source = Reference("base/image", host)
    image = replace(image, layers=tuple(replace(one, mount_from=source) for one in image.layers))
    report = push_image(image, Registry(host).repository("team/mounted"), ["v1"])
    assert report.bytes_mounted == sum(layer.descriptor.size for layer in image.layers)
    assert report.bytes_uploaded == image.config_descriptor.size


def test_a_published_tag_stays(host: str, image: Image) -> None:
    repository = Registry(host).repository("team/immutable")
    push_image(image, repository, ["v1"])
    other = replace(image, annotations={"a": "b"})
    with pytest.raises(TagTakenError, match="already names"):
        push_image(other, repository, ["v1"])
    found = repository.resolve("v1")
    assert found is not None
    assert found.digest == image.digest


def test_what_is_attached_is_found_without_the_api(host: str, image: Image) -> None:
    repository = Registry(host).repository("team/attached")
    push_image(image, repository, ["v1"])
    empty = repository.put_bytes(b"{}", EMPTY).to_json()
    statement = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": "application/vnd.cyclonedx+json",
        "config": empty,
        "layers": [empty],
        "subject": image.descriptor.to_json(),
    }
    attached = repository.attach(canonical_json(statement))
    (found,) = repository.referrers(image.digest)
    assert (found.digest, found.artifact_type) == (attached.digest, statement["artifactType"])


def test_tags_are_listed_and_manifests_deleted(host: str, image: Image) -> None:
    repository = Registry(host).repository("team/many")
    names = [f"t{number:02}" for number in range(12)]
    push_image(image, repository, names)
    assert sorted(repository.tags()) == names
    repository.delete(image.digest)
    assert repository.resolve(image.digest) is None
    assert repository.resolve("t03") is None


def test_a_password_opens_the_registry(
    image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with password_registry(tmp_path / "registry") as host:
        with pytest.raises(RegistryError, match="none are known"):
            push_image(image, Registry(host).repository("team/keel"), ["v1"])
        wrong = Credentials(USER, "wrong one")
        with pytest.raises(RegistryError, match="401") as caught:
            push_image(image, Registry(host, credentials=wrong).repository("team/keel"), ["v1"])
        assert "wrong one" not in f"{caught.value.what} {caught.value.remedy}"
        push_image(image, Registry(host, credentials=ANN).repository("team/keel"), ["v1"])
        monkeypatch.setenv("SLIPWAY_REGISTRY_USERNAME", USER)
        monkeypatch.setenv("SLIPWAY_REGISTRY_PASSWORD", PASSWORD)
        assert Registry(host).repository("team/keel").tags() == ["v1"]


def test_a_token_opens_it_and_one_serves_a_push(image: Image, tmp_path: Path) -> None:
    with token_registry(tmp_path / "registry") as (host, tokens):
        registry = Registry(host, credentials=ANN)
        push_image(image, registry.repository("base/image"), ["v1"])
        assert tokens.asked == [(("repository:base/image:pull,push",), True)]
        tokens.asked.clear()
        source = Reference("base/image", host)
        mounted = replace(
            image, layers=tuple(replace(one, mount_from=source) for one in image.layers)
        )
        report = push_image(mounted, registry.repository("team/keel"), ["v1", "latest"])
        assert report.bytes_uploaded == image.config_descriptor.size
        scopes = ("repository:team/keel:pull,push", "repository:base/image:pull")
        assert tokens.asked == [(scopes, True)]


def test_a_token_that_has_run_out_is_renewed(image: Image, tmp_path: Path) -> None:
    with token_registry(tmp_path / "registry") as (host, tokens):
        tokens.expired = 1
        registry = Registry(host, credentials=ANN)
        push_image(image, registry.repository("team/keel"), ["v1"])
        assert len(tokens.asked) == 2
        pulled = pull_image(
            registry.repository("team/keel"), "v1", LayoutStore(tmp_path / "other"), AMD64
        )
        assert pulled.digest == image.digest


def test_a_wrong_password_fails_at_the_token_server(image: Image, tmp_path: Path) -> None:
    with token_registry(tmp_path / "registry") as (host, tokens):
        registry = Registry(host, credentials=Credentials(USER, "wrong one"))
        with pytest.raises(RegistryError, match="/token was answered 401"):
            push_image(image, registry.repository("team/keel"), ["v1"])
        assert not any(known for _, known in tokens.asked)


def test_tls_is_spoken_where_the_certificate_is_trusted(
    image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tls_registry(tmp_path / "registry") as (host, certificate):
        with pytest.raises(NetworkError, match="CERTIFICATE_VERIFY_FAILED") as caught:
            push_image(image, Registry(host, insecure=False).repository("team/keel"), ["v1"])
        assert "SSL_CERT_FILE" in caught.value.remedy
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        repository = Registry(host, insecure=False).repository("team/keel")
        push_image(image, repository, ["v1"])
        pulled = pull_image(repository, "v1", LayoutStore(tmp_path / "other"), AMD64)
        assert pulled.digest == image.digest


def test_a_proxy_is_gone_through_where_the_environment_names_one(
    image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        tls_registry(tmp_path / "registry") as (host, certificate),
        tunnelling_proxy(host) as (proxy, asked),
    ):
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        monkeypatch.setenv("HTTPS_PROXY", f"http://ann:s%20cret@{proxy}")
        repository = Registry("registry.test").repository("team/keel")
        push_image(image, repository, ["v1"])
        assert repository.tags() == ["v1"]
        credentials = Credentials("ann", "s cret").basic
        assert set(asked) == {("CONNECT registry.test:443", credentials)}
        monkeypatch.setenv("NO_PROXY", "example, .test")
        with pytest.raises(NetworkError):
            Registry("registry.test", retries=QUICK).repository("team/keel").tags()
        assert Registry(host, insecure=False).repository("team/keel").tags() == ["v1"]


@contextmanager
def tunnelling_proxy(upstream: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """An HTTP proxy whose tunnels all lead to `upstream`; also gives what it was asked."""
    asked: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            asked.append((f"CONNECT {self.path}", self.headers.get("Proxy-Authorization", "")))
            self.send_response(200)
            self.end_headers()
            host, _, port = upstream.partition(":")
            with socket.create_connection((host, int(port))) as there:
                back = threading.Thread(target=_pump, args=(there, self.connection), daemon=True)
                back.start()
                _pump(self.connection, there)
                back.join()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        server.daemon_threads = True
        yield f"127.0.0.1:{server.server_address[1]}", asked


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while block := source.recv(65536):
            target.sendall(block)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def test_no_secret_is_logged_shown_or_raised(
    image: Image, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with token_registry(tmp_path / "registry") as (host, _):
        registry = Registry(host, credentials=ANN, retries=QUICK)
        repository = registry.repository("team/keel")
        push_image(image, repository, ["v1"])
        token = registry.transport._authorizer.header("repository:team/keel:pull").split()[1]
        with serving(FaultProxy(host)) as proxy:
            echo = f"you sent Bearer {token} and {ANN.basic}".encode()
            proxy.fault(status=400, body=echo, times=9)
            registry.transport._root = f"http://{proxy.host}/"
            with pytest.raises(RegistryError) as caught:
                repository.tags()
    shown = (
        f"{caught.value.what} {caught.value.remedy} {registry!r} {repository!r} {vars(registry)}"
    )
    assert "you sent Bearer ***" in shown
    for secret in (PASSWORD, token[:30], ANN.basic.removeprefix("Basic ")):
        assert secret not in shown + caplog.text


def test_plain_http_behind_an_https_name_is_said_so(host: str) -> None:
    with pytest.raises(NetworkError) as caught:
        Registry(host, insecure=False, retries=QUICK).repository("team/keel").tags()
    assert "SLIPWAY_INSECURE_REGISTRIES" in caught.value.remedy


def test_a_fast_push_takes_five_round_trips(host: str, image: Image, store: LayoutStore) -> None:
    """Tag and blobs asked for at once; blobs; manifest; read back; alias."""
    with serving(FaultProxy(host)) as proxy:
        repository = Registry(proxy.host).repository("team/fast")
        push_image(image, repository, ["v1", "latest"])
        edited = append(image, [make_layer(store, "f0", b"edited" * 9000)])
        proxy.seen.clear()
        proxy.delay = 0.3  # far more than a busy machine delays a thread
        push_image(edited, repository, ["v2", "latest", "stable"], known=digests(image))
        assert proxy.depth() == 5
        assert len(proxy.seen) == 9
        proxy.seen.clear()
        again = replace(edited, annotations={"a": "b"})
        known = digests(edited) | {edited.config_descriptor.digest}

        def look() -> None:
            assert repository.resolve("latest") is not None

        push_image(again, repository, ["v3"], known=known, meanwhile=look)
        assert proxy.depth() == 3


@pytest.mark.docker
def test_docker_pulls_what_was_pushed(host: str, image: Image) -> None:
    push_image(image, Registry(host).repository("team/docker"), ["v1"])
    _docker_pull(f"{host}/team/docker@{image.digest}", image)


@pytest.mark.docker
def test_docker_pulls_from_a_served_store(image: Image, store: LayoutStore) -> None:
    store.write_image(image, ["v1"])
    with serve_layout(store.root) as address:
        _docker_pull(f"{address}/slipway/keel@{image.digest}", image)


def _docker_pull(name: str, image: Image) -> None:
    try:
        subprocess.run(["docker", "pull", "-q", name], check=True, capture_output=True)
        said = subprocess.run(
            ["docker", "image", "inspect", name], check=True, capture_output=True
        ).stdout
        (found,) = json.loads(said)
        assert found["Id"] == image.config_descriptor.digest
        assert found["RootFS"]["Layers"] == [layer.diff_id for layer in image.layers]
    finally:
        subprocess.run(["docker", "image", "rm", name], capture_output=True)


def test_skopeo_reads_what_was_pushed_and_what_is_served(
    host: str, image: Image, store: LayoutStore, tmp_path: Path
) -> None:
    if shutil.which("skopeo") is None:
        pytest.skip("skopeo is not installed (apt-get install skopeo)")
    push_image(image, Registry(host).repository("team/skopeo"), ["v1"])
    store.write_image(image, ["v1"])
    with serve_layout(store.root) as served:
        for number, place in enumerate((f"{host}/team/skopeo", f"{served}/any")):
            said = subprocess.run(
                ["skopeo", "inspect", "--tls-verify=false", f"docker://{place}:v1"],
                check=True,
                capture_output=True,
            ).stdout
            assert json.loads(said)["Digest"] == image.digest
            copy = tmp_path / f"copy{number}"
            subprocess.run(
                [
                    *("skopeo", "copy", "-q", "--src-tls-verify=false"),
                    *(f"docker://{place}:v1", f"oci:{copy}:v1"),
                ],
                check=True,
                capture_output=True,
            )
            assert LayoutStore(copy).tags()["v1"].digest == image.digest
