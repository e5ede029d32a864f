"""Requests: kept connections, bounded retries, redirects, no credentials where not due."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from email.utils import formatdate

import pytest

from slipway.errors import NetworkError, RegistryError
from slipway.image.registry import transport as transports
from slipway.image.registry.auth import Credentials
from slipway.image.registry.connections import is_loopback
from slipway.image.registry.failures import DroppedError, RefusedError
from slipway.image.registry.retry import Retries
from slipway.image.registry.transport import BODY_LIMIT, Transport
from support.registries import MemoryRegistry, serving

PATH = "/v2/team/keel/tags/list"
SCOPE = "repository:team/keel:pull"
QUICK = Retries(attempts=4, pause=0.001, longest=0.002, total=5.0)
ANN = Credentials("ann", "hush-hush")


@pytest.fixture
def transport(server: MemoryRegistry) -> Iterator[Transport]:
    server.tags["team/keel", "a"] = "x"
    client = Transport(server.host, retries=QUICK)
    yield client
    client.close()


def get(transport: Transport, path: str = PATH, **options: object) -> int:
    return transport.request("GET", path, scope=SCOPE, **options).status  # type: ignore[arg-type]


def test_a_connection_is_used_again(server: MemoryRegistry, transport: Transport) -> None:
    for _ in range(3):
        assert get(transport) == 200
    transport.request("HEAD", PATH, scope=SCOPE)
    transport.request("GET", "/v2/none", scope=SCOPE, accept=(404,))
    assert server.connections == 1
    assert transport.requests == 5


def test_a_kept_connection_that_the_server_closed_is_replaced(
    server: MemoryRegistry, transport: Transport
) -> None:
    server.fault(lose_answer=True, after=1)
    assert get(transport) == 200
    assert get(transport) == 200
    assert server.connections == 2


def test_connections_are_opened_ahead(server: MemoryRegistry, transport: Transport) -> None:
    transport.warm(3)
    transport.warm(3)
    get(transport)
    assert server.connections == 3


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again(
    server: MemoryRegistry, transport: Transport, status: int
) -> None:
    server.fault(status=status, times=3)
    assert get(transport) == 200


@pytest.mark.parametrize("status", [400, 403, 404, 405, 409, 410, 422, 501])
def test_what_is_final_is_not_tried_again(
    server: MemoryRegistry, transport: Transport, status: int
) -> None:
    server.fault(status=status, times=9)
    with pytest.raises(RefusedError) as caught:
        get(transport)
    assert caught.value.status == status
    assert len(server.seen) == 1


def test_attempts_end(server: MemoryRegistry, transport: Transport) -> None:
    server.fault(status=503, times=99)
    with pytest.raises(RefusedError, match="503"):
        get(transport)
    assert len(server.seen) == 4


def test_resets_are_tried_again_and_end(server: MemoryRegistry, transport: Transport) -> None:
    server.fault(lose_answer=True, times=2)
    assert get(transport) == 200
    server.faults.clear()
    server.fault(truncate=3, times=99)
    with pytest.raises(DroppedError, match="4 attempts"):
        get(transport)


@pytest.mark.parametrize("dated", [False, True])
def test_retry_after_is_honoured(server: MemoryRegistry, transport: Transport, dated: bool) -> None:
    value = formatdate(time.time() + 2, usegmt=True) if dated else "1"
    server.fault(status=429, headers={"Retry-After": value})
    started = time.monotonic()
    assert get(transport) == 200
    assert time.monotonic() - started >= (0.9 if not dated else 0.5)


def test_too_long_a_retry_after_fails_at_once(server: MemoryRegistry, transport: Transport) -> None:
    server.fault(status=429, headers={"Retry-After": "3600"})
    with pytest.raises(RefusedError, match="429"):
        get(transport)
    assert len(server.seen) == 1


def test_nobody_listening_is_said_with_the_address() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(NetworkError, match=host) as caught:
        get(Transport(host, retries=QUICK))
    assert "nobody listens" in caught.value.remedy


def test_an_answer_without_an_end_is_not_read(server: MemoryRegistry, transport: Transport) -> None:
    server.fault(status=200, body=b"x" * (BODY_LIMIT + 1))
    with pytest.raises(RegistryError, match="4 MiB"):
        get(transport)


def test_an_answer_that_trickles_has_a_bound(
    server: MemoryRegistry, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "_ANSWER_SECONDS", 0.05)
    server.fault(status=200, body=b"x" * (1 << 20), pause=0.02, times=99)
    with pytest.raises(DroppedError, match="did not end"):
        get(transport)


def test_basic_credentials_are_sent_once_asked_for(server: MemoryRegistry) -> None:
    server.tags["team/keel", "a"] = "x"
    server.challenge = 'Basic realm="r"'
    server.authorizations = {ANN.basic}
    transport = Transport(server.host, credentials=ANN, retries=QUICK)
    assert get(transport) == 200
    assert get(transport) == 200
    assert ["authorization" in seen.headers for seen in server.seen] == [False, True, True]


def test_wrong_credentials_end_in_a_401_that_says_what_to_do(server: MemoryRegistry) -> None:
    server.challenge = 'Basic realm="r"'
    with pytest.raises(RefusedError, match="401") as caught:
        get(Transport(server.host, credentials=ANN, retries=QUICK))
    assert "docker login" in caught.value.remedy
    assert len(server.seen) == 2


def test_no_credentials_at_all_are_said_to_be_missing(server: MemoryRegistry) -> None:
    server.challenge = 'Basic realm="r"'
    with pytest.raises(RegistryError, match="none are known"):
        get(Transport(server.host, retries=QUICK))


def test_tokens_are_fetched_renewed_when_refused_and_kept(server: MemoryRegistry) -> None:
    server.tags["team/keel", "a"] = "x"
    with serving(MemoryRegistry()) as auth:
        for name in ("one", "two"):
            body = f'{{"token":"{name}","expires_in":300}}'.encode()
            auth.fault(status=200, body=body)
        server.challenge = f'Bearer realm="http://{auth.host}/token",service="reg"'
        server.authorizations = {"Bearer one"}
        transport = Transport(server.host, credentials=ANN, retries=QUICK)
        assert get(transport) == 200
        server.authorizations = {"Bearer two"}  # the first has run out early
        assert get(transport) == 200
        assert get(transport) == 200
        assert len(auth.seen) == 2
        assert auth.seen[0].query == "service=reg&scope=repository%3Ateam%2Fkeel%3Apull"
        assert auth.seen[0].headers["authorization"] == ANN.basic


def test_a_token_server_that_refuses_is_named(server: MemoryRegistry) -> None:
    with serving(MemoryRegistry()) as auth:
        auth.fault(status=401)
        server.challenge = f'Bearer realm="http://{auth.host}/token"'
        with pytest.raises(RefusedError, match=auth.host):
            get(Transport(server.host, credentials=ANN, retries=QUICK))


def test_a_redirect_to_another_host_is_followed_without_credentials(
    server: MemoryRegistry,
) -> None:
    server.challenge = 'Basic realm="r"'
    server.authorizations = {ANN.basic}
    with serving(MemoryRegistry()) as other:
        other.tags["team/keel", "b"] = "x"
        other.challenge = 'Basic realm="phish"'
        server.fault(status=307, headers={"Location": f"http://{other.host}{PATH}"}, after=1)
        with pytest.raises(RefusedError, match=f"{other.host}.* 401"):
            get(Transport(server.host, credentials=ANN, retries=QUICK))
        assert "authorization" in server.seen[-1].headers
        assert [seen.headers.get("authorization") for seen in other.seen] == [None]


def test_a_redirect_within_the_registry_keeps_them(server: MemoryRegistry) -> None:
    server.tags["team/keel", "a"] = "x"
    server.challenge = 'Basic realm="r"'
    server.authorizations = {ANN.basic}
    server.fault(status=302, headers={"Location": PATH}, path="/v2/old")
    assert get(Transport(server.host, credentials=ANN, retries=QUICK), "/v2/old") == 200


def test_redirects_in_a_circle_end(server: MemoryRegistry, transport: Transport) -> None:
    server.fault(status=302, headers={"Location": PATH}, times=99)
    with pytest.raises(RegistryError, match="circle"):
        get(transport)
    assert len(server.seen) < 10


@pytest.mark.parametrize("location", ["file:///etc/passwd", "", "/a b", "http://ä/"])
def test_a_redirect_to_what_is_no_address_is_refused(
    server: MemoryRegistry, transport: Transport, location: str
) -> None:
    server.fault(status=302, headers={"Location": location.encode().decode("latin-1")})
    with pytest.raises(RegistryError):
        get(transport)


@pytest.mark.parametrize(
    "location",
    [
        "http://elsewhere.example/v2/x",
        "//elsewhere.example/v2/x",
        "/v2/x\r\nX-Evil: 1",
        "/v2/ä",
        "",
        "http://elsewhere.example@127.0.0.2/v2/x",
    ],
)
def test_an_address_must_lead_to_the_registry(location: str) -> None:
    with pytest.raises(RegistryError):
        Transport("reg.example").locate(location)


def test_addresses_are_brought_to_the_registrys_own_form() -> None:
    transport = Transport("reg.example")
    expected = "https://reg.example/v2/u/1?s=a"
    assert transport.locate("http://reg.example/v2/u/1?s=a") == expected
    assert transport.locate("https://reg.example:443/v2/u/1?s=a") == expected
    assert transport.locate("1?s=a", "https://reg.example/v2/u/") == expected
    assert Transport("docker.io").locate("/v2/") == "https://registry-1.docker.io/v2/"


def test_plain_http_is_for_loopback_and_what_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Transport("reg.example").scheme == "https"
    assert Transport("localhost:5000").scheme == "http"
    assert Transport("127.0.0.1:5000", insecure=False).scheme == "https"
    monkeypatch.setenv("SLIPWAY_INSECURE_REGISTRIES", "a.example:80, reg.example")
    assert Transport("reg.example").scheme == "http"
    assert Transport("other.example").scheme == "https"


def test_loopback_is_told_from_names_that_look_like_it() -> None:
    assert all(map(is_loopback, ["127.0.0.1:5000", "127.9.9.9", "[::1]:5000", "localhost"]))
    assert not any(map(is_loopback, ["10.0.0.1", "127.0.0.1.example", "localhost.example:5000"]))
