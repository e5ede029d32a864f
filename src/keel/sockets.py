"""Listening sockets and their options, for the server and the router."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket

from keel.errors import AddressInUseError


def no_delay(transport: asyncio.BaseTransport) -> None:
    """Send small writes at once: a token must not wait for the acknowledgement of the last one."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):  # the peer is gone already
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def listen(
    host: str, port: int, *, shared: bool = False, backlog: int | None = 4096
) -> socket.socket:
    """A listening socket.

    Args:
        port: 0 takes a free one.
        shared: other processes may listen there too; the kernel spreads connections over them.
        backlog: None: bind without listening.

    Raises:
        AddressInUseError: the port is taken, or the address is not this machine's.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        if backlog is not None:
            listener.listen(backlog)
    except OSError as error:
        why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be had: {error.strerror}"
        raise AddressInUseError(
            f"{host}:{port} {why}", "choose another with --host and --port, or end who has it"
        ) from error
    listener.setblocking(False)
    return listener
