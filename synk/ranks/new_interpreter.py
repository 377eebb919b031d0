"""What a new interpreter does that becomes a zygote: it imports, and waits."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from ..workers.zygote_loop import be_zygote
from .session import SESSION


def main(master: int, requests: int, reports: int, modules: Sequence[str]) -> None:
    """Be the zygote of a master that cannot be forked itself.

    Parameters
    ----------
    master : int
        Its process id.
    requests, reports : int
        This end of each pipe.
    modules : sequence of str
        What ranks will need, besides synk; imported once for all of them.
    """
    for module in modules:
        importlib.import_module(module)
    be_zygote(master, requests, reports, SESSION.be_rank)
