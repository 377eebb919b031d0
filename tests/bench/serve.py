"""The peer's end: ``python -m bench.serve SOCKET MODULE OPTIONS SIZE``.

Imports MODULE, of `peers`, and answers the driver's questions until it hangs up.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
from importlib import import_module

from .link import Link
from .options import Options, Place

RANK_VARIABLES = ("BENCH_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


def main() -> None:
    path, module, options, size = sys.argv[1:]
    rank = int(next(filter(None, map(os.environ.get, RANK_VARIABLES)), "0"))
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    link = Link(connection)
    place = Place(rank, int(size), os.path.dirname(path))
    try:
        peer = import_module(module)
        with peer.opened(Options(**json.loads(options)), place) as questions:
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
