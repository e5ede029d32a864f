"""Adding members to a JSON object without reading it: before its last brace."""

from __future__ import annotations

from os import urandom

_WHITESPACE = b" \t\r\n"
# Above it a body is handed on in pieces instead of being copied once more.
_COPY_LIMIT = 32 * 1024
# Random bytes are asked of the kernel for so many ids at once.
_MINTED_AT_ONCE = 256
_minted: list[str] = []


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
    if not _minted:
        digits = urandom(16 * _MINTED_AT_ONCE).hex()
        _minted.extend(digits[at : at + 32] for at in range(0, len(digits), 32))
    raw = _minted.pop()
    return raw[:12] + "4" + raw[13:16] + "89ab"[int(raw[16], 16) & 3] + raw[17:]
