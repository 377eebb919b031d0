"""What tests of `tests/bench` share: sizes that take no time, peers that are absent."""

from __future__ import annotations

import dataclasses

from bench.options import Options
from bench.rounds import Family

TINY = Options(
    ranks=2,
    cores=2,
    repeats=3,
    pause=0.01,
    look=0.05,
    turn=0.002,
    follow=0.05,
    points=200,
    layers=(6, 5, 4),
    rows=24,
    steps=("relu 8", "tanh 12"),
    alone=8,
    filters=(2, 3),
    units=(5, 4),
    side=4,
    images=("cnn 8",),
    nbytes=(4, 4096),
    shape=(6, 4),
    start_limit=120,
    ask_limit=60,
    end_limit=2,
)

QUICKLY = "mode=FAST_COMPILE,linker=py,cxx="
"""PyTensor's flags that have peers compile to Python: their speed is not tested."""


def only(family: Family, *peers: str) -> Family:
    """Return a family in which all other peers need what does not exist."""
    absent = {
        name: spec if name in peers else spec._replace(needs=("no-such-library",))
        for name, spec in family.peers.items()
    }
    return dataclasses.replace(family, peers=absent)
