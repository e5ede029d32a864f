"""Adding members to a JSON object without reading it: before its last brace."""

from __future__ import annotations

from os import urandom

_WHITESPACE = b" \t\r\n"
# Above it a body is handed on in pieces instead of being copied once more.
_COPY_LIMIT = 32 * 1024


def splice(body: bytes, members: bytes) -> tuple[bytes | memoryview, ...]:
    """The body with further members, as pieces.

    What stands there stays as it is: spacing, order, keys that are there twice. An added member
    wins over one of the same name, since the last one counts for every parser that engines use.

    Args:
        body: a JSON object; that has been checked.
        members: like `"a":1,"b":2`; empty leaves the body itself, not a copy.
    """
    if not members:
        return (body,)
    close = body.rindex(b"}")
    before = close - 1
    while body[before] in _WHITESPACE:
        before -= 1
    comma = b"" if body[before] == 0x7B else b","  # "{": nothing between the braces
    if len(body) <= _COPY_LIMIT:
        return (b"".join((body[:close], comma, members, body[close:])),)
    view = memoryview(body)
    return (view[:close], comma + members, view[close:])


def mint_rid() -> str:
    """A fresh id for the engine: a version 4 UUID as 32 hexadecimal digits."""
    raw = bytearray(urandom(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    return raw.hex()
