"""Transports to workers: HTTP/1.1 with kept-alive connections, HTTP/2 without TLS."""

from __future__ import annotations
