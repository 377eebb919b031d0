"""What a script is told of a machine of its session."""

from __future__ import annotations

from typing import NamedTuple


class Node(NamedTuple):
    """One node of a session: a machine, or what the launcher made of one.

    Attributes
    ----------
    host : str
        The machine's name.
    ranks : int
        How many ranks it has. They are numbered node by node.
    cores : int
        How many cores these have together.
    gpus : int
        How many of the ranks compute on GPUs: all or none.
    """

    host: str
    ranks: int
    cores: int
    gpus: int = 0
