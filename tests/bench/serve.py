"""The peer's end: ``python -m bench.serve SOCKET MODULE OPTIONS SIZE``.

Imports MODULE, of `peers`, and answers the driver's questions until it hangs up. Of a
module with several implementations it is "MODULE:FUNCTION".

One JSON object a line goes over a Unix socket. A peer says ``{"rank": r, "versions":
{...}}`` when it is ready. The driver then sends ``{"ask": question, "number": n}``, and
gets ``{"answer": ...}`` or ``{"error": text}``. The end of the connection is the end of
the peer.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import traceback
from importlib import import_module
from typing import Any

from .work import Options, Place

RANK_VARIABLES = ("BENCH_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


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


def main() -> None:
    path, module, options, size = sys.argv[1:]
    rank = int(next(filter(None, map(os.environ.get, RANK_VARIABLES)), "0"))
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    link = Link(connection)
    place = Place(rank, int(size), os.path.dirname(path))
    try:
        name, _, function = module.partition(":")
        peer = import_module(name)
        opened = getattr(peer, function or "opened")
        with opened(Options(**json.loads(options)), place) as questions:
            link.send(rank=rank, versions=getattr(peer, "VERSIONS", {}))
            answer_all(link, questions)
    except Exception:
        link.send(error=traceback.format_exc())
        raise


def answer_all(link: Link, questions: dict) -> None:
    """Answer until the driver hangs up; an error is an answer, too."""
    while (message := link.receive()) is not None:
        try:
            answer = questions[message["ask"]](message["number"])
        except Exception:
            link.send(error=traceback.format_exc())
        else:
            link.send(answer=answer)


if __name__ == "__main__":
    main()
