"""A worker's answer on its way to the client: held while it can be replaced, then passed on."""

from __future__ import annotations

import time

from keel.router.answer import framed_end, framed_piece, has_error_event, response_head
from keel.router.client import ClientConnection, ClientRequest
from keel.router.outcome import Outcome, of_status
from keel.router.upstream.base import Head

# A JSON answer up to this size goes out when it is complete, so that one which breaks off can
# still be had from another worker, or become a proper error.
_HOLD_BYTES = 1024 * 1024
# Above it pieces are not joined before they are written.
_JOIN_BYTES = 64 * 1024


class Relay:
    """Writes one answer in the form that the client understands.

    Attributes:
        head: of the answer that is being given, or None.
        holding: it is kept until it is complete; the client has none of it.
        began: the client has a part of it; no other answer can take its place.
        flowing: the middle of a chunked answer, which `piece` passes on.
        first_at: when it began, monotonic.
    """

    __slots__ = (
        "_client",
        "_error_event",
        "_events",
        "_held",
        "_held_size",
        "_request",
        "_request_id",
        "began",
        "first_at",
        "flowing",
        "head",
        "holding",
    )

    def __init__(self, client: ClientConnection, request: ClientRequest, request_id: str) -> None:
        self._client, self._request, self._request_id = client, request, request_id
        self._held: list[bytes] = []
        self._held_size = 0
        self._events = self._error_event = False
        self.head: Head | None = None
        self.holding = self.began = self.flowing = False
        self.first_at = 0.0

    def begin(self, head: Head, *, hold: bool) -> None:
        """A worker's answer begins.

        Args:
            hold: keep it until it is complete, or longer than what is kept.
        """
        self.head, self.holding, self._events = head, hold, head.event_stream

    def forget(self) -> None:
        """Another worker is asked instead; the client has nothing of this answer."""
        assert not self.began
        self.head, self.holding, self._held, self._held_size = None, False, [], 0

    def piece(self, data: bytes) -> None:
        """Pass on a piece from the middle of a chunked answer."""
        if self._events and b'"error"' in data and has_error_event(data):
            self._error_event = True
        self._client.write(framed_piece(data))

    def take(self, data: bytes, end: bool) -> bool:
        """More of the answer. Whether the client has a part of it now."""
        if self.holding:
            self._held.append(data)
            self._held_size += len(data)
            if not end and self._held_size <= _HOLD_BYTES:
                return False
            data, self._held, self.holding = b"".join(self._held), [], False
        if self._events and b'"error"' in data and has_error_event(data):
            self._error_event = True
        pieces = []
        if not self.began:
            self.began, self.first_at = True, time.monotonic()
            pieces.append(self._first_line(len(data) if end else None))
        if data:
            pieces.append(framed_piece(data) if self.flowing else data)
        if end and self.flowing:
            pieces.append(framed_end)
        if len(data) <= _JOIN_BYTES:
            self._client.write(b"".join(pieces))
        else:
            self._client.writelines(pieces)
        return True

    def _first_line(self, whole: int | None) -> bytes:
        """The head for the client; `whole` is the length of an answer that is complete already."""
        head, request = self.head, self._request
        assert head is not None
        length = head.length
        if request.method == b"HEAD" or head.status in (204, 304):
            return response_head(head, length, False, request, self._request_id)
        if length is None:
            length = whole
        if length is None:
            self.flowing = not request.old
            if request.old:
                request.keep_alive = False  # the connection's end is the answer's end
        return response_head(head, length, self.flowing, request, self._request_id)

    @property
    def outcome(self) -> Outcome:
        """Of an answer that is complete."""
        assert self.head is not None
        return Outcome.ERROR_EVENT if self._error_event else of_status(self.head.status)

    @property
    def refused(self) -> bool:
        """Whether the worker's answer says that it does not do the work."""
        return self.head is not None and not 200 <= self.head.status < 300

    @property
    def shows_its_end(self) -> bool:
        """Whether the client can tell that the answer, as far as it came, is not the whole."""
        return self.flowing or (self.head is not None and self.head.length is not None)
