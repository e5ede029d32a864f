"""Errors: each names the place, the status, what the registry said, and what helps."""

from __future__ import annotations

import json
import ssl

import pytest

from slipway.errors import NetworkError, RegistryError
from slipway.image.registry.failures import DroppedError, refusal, unreachable


def test_a_refusal_names_everything() -> None:
    body = json.dumps({"errors": [{"code": "DENIED", "message": "no write"}]}).encode()
    error = refusal("reg.example", "PUT", "/v2/a/manifests/x?_state=secret", 403, body)
    assert error.what == "PUT reg.example/v2/a/manifests/x was answered 403 (DENIED: no write)"
    assert "package:write" in error.remedy
    assert (error.status, error.code, error.exit_code) == (403, "DENIED", RegistryError.exit_code)


@pytest.mark.parametrize(
    ("status", "remedy"),
    [(401, "docker login reg.example"), (413, "client_max_body_size"), (504, "proxy_read_timeout")],
)
def test_statuses_have_their_remedy(status: int, remedy: str) -> None:
    assert remedy in refusal("reg.example", "PUT", "/v2/", status, b"").remedy


@pytest.mark.parametrize("body", [b"", b"[]", b'{"errors":[]}', b'{"errors":[5]}', b"\xff\xfe"])
def test_any_body_will_do(body: bytes) -> None:
    assert "answered 418" in refusal("reg.example", "GET", "/v2/", 418, body).what


def test_a_registrys_words_cannot_steer_the_terminal() -> None:
    body = json.dumps({"errors": [{"code": "\x1b[2J", "message": "a\r\nb\x07"}]}).encode()
    what = refusal("reg.example", "GET", "/v2/", 400, body).what
    assert what.isprintable()


def failed(error: Exception, seconds: float = 0.1) -> NetworkError:
    return unreachable("PUT", "https://reg.example/v2/x?state=secret", error, 5, seconds)


def test_a_refused_connection_says_that_nobody_listens() -> None:
    error = failed(ConnectionRefusedError(111, "Connection refused"))
    assert "https://reg.example/v2/x" in error.what
    assert "secret" not in error.what
    assert "5 attempts" in error.what
    assert "nobody listens" in error.remedy
    assert not isinstance(error, DroppedError)


def test_a_cut_after_a_minute_points_at_the_proxys_time_limit() -> None:
    error = failed(ConnectionResetError("unexpected EOF"), 60.2)
    assert isinstance(error, DroppedError)
    assert "60 s" in error.remedy
    assert "proxy_read_timeout" in error.remedy
    assert "proxy_read_timeout" not in failed(ConnectionResetError("reset"), 2.0).remedy


def test_tls_trouble_names_the_setting() -> None:
    assert "SLIPWAY_INSECURE_REGISTRIES" in failed(ssl.SSLError("WRONG_VERSION_NUMBER")).remedy
    untrusted = ssl.SSLCertVerificationError("CERTIFICATE_VERIFY_FAILED self-signed")
    assert "SSL_CERT_FILE" in failed(untrusted).remedy
