"""The peer's end: ``python -m bench.serve SOCKET MODULE OPTIONS SIZE``.

Imports MODULE, of `peers`, and answers the driver's questions until it hangs up. Of a
module with several implementations it is "MODULE:FUNCTION". A peer sends its rank, and
versions of what it uses, when it is ready. The driver then sends questions, each with a
number, and gets answers, or the text of an error.
"""

import json
import os
import sys
import traceback
from importlib import import_module
from multiprocessing.connection import Client, Connection

from .work import Options, Place

RANK_VARIABLES = ("BENCH_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


def main() -> None:
    path, module, options, size = sys.argv[1:]
    rank = int(next(filter(None, map(os.environ.get, RANK_VARIABLES)), "0"))
    link = Client(path)
    place = Place(rank, int(size), os.path.dirname(path))
    try:
        name, _, function = module.partition(":")
        peer = import_module(name)
        opened = getattr(peer, function or "opened")
        with opened(Options(**json.loads(options)), place) as questions:
            link.send({"rank": rank, "versions": getattr(peer, "VERSIONS", {})})
            answer_all(link, questions)
    except Exception:
        link.send({"error": traceback.format_exc()})
        raise


def answer_all(link: Connection, questions: dict) -> None:
    """Answer until the driver hangs up; an error is an answer, too."""
    while True:
        try:
            question, number = link.recv()
        except EOFError:
            return
        try:
            link.send({"answer": questions[question](number)})
        except Exception:
            link.send({"error": traceback.format_exc()})


if __name__ == "__main__":
    main()
