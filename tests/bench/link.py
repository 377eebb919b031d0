"""The protocol between driver and peer: one JSON object a line over a Unix socket.

A peer says ``{"rank": r, "versions": {...}}`` when it is ready. The driver then sends
``{"ask": question, "number": n}``, and gets ``{"answer": ...}`` or ``{"error": text}``.
The end of the connection is the end of the peer.
"""

from __future__ import annotations

import json
import socket
import time
from typing import Any


class ProtocolError(Exception):
    """What came is not a message."""


class Link:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = b""

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, **message: Any) -> None:
        self._socket.settimeout(10)
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, limit: float | None = None) -> dict[str, Any] | None:
        """Return the next message, or None at the end; TimeoutError after `limit`."""
        deadline = None if limit is None else time.monotonic() + limit
        while b"\n" not in self._buffer:
            if deadline is not None:
                self._socket.settimeout(max(1e-3, deadline - time.monotonic()))
            else:
                self._socket.settimeout(None)
            received = self._socket.recv(65536)
            if not received:
                return None
            self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError as error:
            raise ProtocolError(f"not JSON: {line[:80]!r}") from error
        if not isinstance(message, dict):
            raise ProtocolError(f"not an object: {line[:80]!r}")
        return message

    def close(self) -> None:
        self._socket.close()
