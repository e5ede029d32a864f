"""Which headers pass the router, in both directions."""

from __future__ import annotations

from collections.abc import Iterable

Headers = list[tuple[bytes, bytes]]

# Those that workers read, or that tie a request to its trace.
_STANDARD = (
    b"authorization",
    b"x-request-id",
    b"x-correlation-id",
    b"traceparent",
    b"tracestate",
)
_PREFIXES = (b"x-request-id-", b"x-sgl-")
# Only the router may say it: it names a rank of the worker that the router chose.
_NEVER = frozenset((b"x-data-parallel-rank", b"host", b"cookie", b"content-length"))
# On paths that the router does not read itself, the body's type is the client's affair.
_PASSED = frozenset((b"content-type", b"accept", b"content-encoding"))

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_REMEMBERED = 4096


class AllowList:
    """Decides which request headers reach a worker.

    Args:
        extra: further names, in lower case.
    """

    def __init__(self, extra: Iterable[str] = ()) -> None:
        names = {*_STANDARD, *(name.encode() for name in extra)}
        self._names = frozenset(names - _NEVER - HOP_BY_HOP)
        self._seen: dict[bytes, bool] = {}

    def allows(self, name: bytes) -> bool:
        """Whether a header passes; `name` in lower case."""
        known = self._seen.get(name)
        if known is None:
            known = name in self._names or (
                name.startswith(_PREFIXES) and name not in _NEVER and name not in HOP_BY_HOP
            )
            if len(self._seen) < _REMEMBERED:
                self._seen[name] = known
        return known

    def passing(self, headers: Headers, *, whole: bool = False) -> bytes:
        """The headers that reach the worker, as bytes of HTTP/1.1, each line ended.

        Args:
            headers: names in lower case.
            whole: also what says of which type the bodies are.
        """
        allows = self.allows
        lines = b""
        for name, value in headers:
            if allows(name) or (whole and name in _PASSED):
                lines += b"%b: %b\r\n" % (name, value)
        return lines
