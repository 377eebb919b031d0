"""What the nodes are, without a session: for `python -m synk info`."""

from __future__ import annotations

import pickle
import socket
import warnings
from typing import NamedTuple

from ..workers.affinity import allowed_cores
from .cores import take_cores
from .launcher import Launched
from .link import nothing
from .nodes import Cluster


class Seen(NamedTuple):
    """One node.

    Attributes
    ----------
    host : str
    bound : list of int
        The cores that the launcher has left it.
    cores : list of int
        Those that it takes.
    """

    host: str
    bound: list[int]
    cores: list[int]


def look(launched: Launched) -> tuple[str, list[Seen]]:
    """Return the MPI library and the nodes; all of them must call this, once."""
    bound = sorted(allowed_cores())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is returned says it
        cores = take_cores(launched)
    cluster = Cluster(launched)
    cluster.open()
    mine = pickle.dumps(tuple(Seen(socket.gethostname(), bound, cores)))
    seen = [Seen(*pickle.loads(each)) for each in cluster.exchange(nothing, mine)]
    library = cluster.link.library
    cluster.link.close()
    return library, seen
