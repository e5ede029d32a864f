"""Challenges and tokens: read as RFC 9110 writes them, asked for once, renewed when refused."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

import pytest

from slipway.errors import RegistryError
from slipway.image.registry.auth import Credentials
from slipway.image.registry.tokens import Authorizer, covers, parse_challenges, parse_token

BEARER = 'Bearer realm="https://auth.example/token?a=1",service="reg",scope="x:y:z"'
PULL = "repository:team/keel:pull"
PUSH = "repository:team/keel:pull,push"


class TokenServer:
    """Gives tokens `t1`, `t2`, … and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Mapping[str, str], bytes | None]] = []

    def __call__(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> bytes:
        self.asked.append((method, url, headers, body))
        return json.dumps({"token": f"t{len(self.asked)}", "expires_in": 300}).encode()


@pytest.fixture
def tokens() -> TokenServer:
    return TokenServer()


def authorizer(tokens: TokenServer, credentials: Credentials | None = None) -> Authorizer:
    return Authorizer("reg.example", True, credentials or Credentials("ann", "hush!"), tokens)


def test_a_challenge_may_be_quoted_bare_escaped_or_one_of_several() -> None:
    header = 'Basic realm="a \\"b\\", c", BEARER Realm=https://t.example/x , Service="s,1"'
    basic, bearer = parse_challenges(header)
    assert (basic.scheme, basic.realm) == ("basic", 'a "b", c')
    assert (bearer.scheme, bearer.realm, bearer.service) == ("bearer", "https://t.example/x", "s,1")


@pytest.mark.parametrize("header", ["", ",,,", 'realm="x"', '"'])
def test_what_is_no_challenge_gives_none(header: str) -> None:
    assert parse_challenges(header) == []


def test_tokens_are_given_up_before_they_run_out() -> None:
    now = time.monotonic()
    assert 260 < parse_token(b'{"token":"a","expires_in":300}').until - now < 280
    assert 40 < parse_token(b'{"access_token":"a"}').until - now < 55


@pytest.mark.parametrize(
    "body", [b"{}", b"[]", b"no", b'{"token":""}', b'{"token":"a\\r\\nX-Evil: 1"}', b'{"token":5}']
)
def test_what_is_no_token_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_token(body)


def test_a_wider_scope_covers_a_narrower_one() -> None:
    both = f"{PUSH} repository:base/debian:pull"
    assert covers(both, PULL)
    assert covers(both, "repository:base/debian:pull")
    assert not covers(PULL, PUSH)
    assert not covers(PULL, "repository:team/other:pull")


def test_nothing_is_sent_before_it_is_asked_for(tokens: TokenServer) -> None:
    assert authorizer(tokens).header(PULL) == ""
    assert tokens.asked == []


def test_a_token_serves_all_that_its_scope_covers(tokens: TokenServer) -> None:
    subject = authorizer(tokens)
    assert subject.renew(BEARER, PUSH, "")
    assert subject.header(PUSH) == "Bearer t1"
    assert subject.header(PULL) == "Bearer t1"
    assert subject.header("repository:team/other:pull") == "Bearer t2"
    method, url, headers, body = tokens.asked[0]
    asked = parse_qs(urlsplit(url).query)
    assert (method, body, asked["a"], asked["service"]) == ("GET", None, ["1"], ["reg"])
    assert asked["scope"] == [PUSH, "x:y:z"]
    assert headers["Authorization"] == Credentials("ann", "hush!").basic


def test_a_refused_token_is_replaced_once_for_all_threads(tokens: TokenServer) -> None:
    subject = authorizer(tokens)
    subject.renew(BEARER, PULL, "")
    assert subject.renew(BEARER, PULL, "Bearer t1")
    assert subject.renew(BEARER, PULL, "Bearer t1")
    assert len(tokens.asked) == 2
    assert subject.header(PULL) == "Bearer t2"


def test_an_identity_token_is_exchanged_by_post(tokens: TokenServer) -> None:
    subject = authorizer(tokens, Credentials("", "", "idt"))
    subject.renew(BEARER, PULL, "")
    method, url, headers, body = tokens.asked[0]
    assert (method, url) == ("POST", "https://auth.example/token?a=1")
    form = parse_qs((body or b"").decode())
    assert form["grant_type"] == ["refresh_token"]
    assert form["refresh_token"] == ["idt"]
    assert "Authorization" not in headers


def test_basic_credentials_are_not_offered_twice(tokens: TokenServer) -> None:
    subject = authorizer(tokens)
    assert subject.renew('Basic realm="x"', PULL, "")
    assert not subject.renew('Basic realm="x"', PULL, subject.header(PULL))


@pytest.mark.parametrize(
    "challenge",
    [
        "Digest realm=x",
        "",
        "Bearer service=x",
        'Bearer realm="ftp://auth.example/t"',
        'Bearer realm="http://auth.example/t"',
    ],
)
def test_credentials_go_to_no_doubtful_place(tokens: TokenServer, challenge: str) -> None:
    with pytest.raises(RegistryError):
        authorizer(tokens).renew(challenge, PULL, "")
    assert tokens.asked == []


def test_secrets_that_come_back_are_blacked_out(tokens: TokenServer) -> None:
    subject = authorizer(tokens)
    subject.renew(BEARER, PULL, "")
    basic = Credentials("ann", "hush!").basic
    shown = subject.redact(f"you sent {basic}, that is ann:hush!")
    assert "hush!" not in shown
    assert basic.removeprefix("Basic ") not in shown
