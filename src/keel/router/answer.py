"""Answers as bytes of HTTP/1.1 for the client."""

from __future__ import annotations

from http import HTTPStatus

from keel.router.client import ClientRequest
from keel.router.upstream.base import Head

_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_STATUS_LINES = {code: b"HTTP/1.1 %d %b\r\n" % (code, reason) for code, reason in _REASONS.items()}
framed_end = b"0\r\n\r\n"


def framed_piece(data: bytes) -> bytes:
    """One chunk of the chunked coding; `data` is not empty."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def response_head(
    head: Head, length: int | None, chunked: bool, request: ClientRequest, request_id: str
) -> bytes:
    """The head of a worker's answer as the client gets it.

    Args:
        length: content-length, or None for an answer that is chunked, or ends with the connection.
    """
    lines = _STATUS_LINES.get(head.status) or b"HTTP/1.1 %d \r\n" % head.status
    lines += head.lines
    if not head.has_request_id:
        lines += b"x-request-id: " + request_id.encode("latin-1") + b"\r\n"
    if length is not None:
        lines += b"content-length: %d\r\n" % length
    elif chunked:
        lines += b"transfer-encoding: chunked\r\n"
    return lines + _connection(request) + b"\r\n"


def own_answer(
    status: int,
    body: bytes,
    content_type: str,
    request: ClientRequest,
    headers: bytes = b"",
) -> bytes:
    """A complete answer of the router itself."""
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    return b"%bcontent-type: %b\r\ncontent-length: %d\r\n%b%b\r\n%b" % (
        line,
        content_type.encode(),
        len(body),
        headers,
        _connection(request),
        b"" if request.method == b"HEAD" else body,
    )


def _connection(request: ClientRequest) -> bytes:
    if not request.keep_alive:
        return b"connection: close\r\n"
    return b"connection: keep-alive\r\n" if request.old else b""


def has_error_event(data: bytes) -> bool:
    """Whether an event of the stream is an error; one that is split over two reads is missed."""
    return b'data: {"error"' in data or b'data:{"error"' in data or b"event: error" in data
