"""The table of Theano 1.0's public names, by the section of its reference.

Each name has one of four states:

* same: the very object that PyTensor has under the same name;
* mapped: PyTensor's, under another name or with Theano's arguments;
* written: not in PyTensor, part of synk;
* absent: an error that says what to use.

``docs/theano.rst`` is made from this table by `names_page`, and tests
hold it to what the modules do.
"""

from __future__ import annotations

from functools import cache

from . import names_network, names_sparse, names_tensor, names_theano
from .names_section import Section


def sections() -> list[Section]:
    """Return the whole table."""
    return [
        *names_theano.SECTIONS,
        *names_tensor.SECTIONS,
        *names_sparse.SECTIONS,
        *names_network.SECTIONS,
    ]


@cache
def absent() -> dict[str, str]:
    """Return what to use in place of each absent name, by its full name."""
    return {
        f"{section.module}.{name}": remark
        for section in sections()
        for name, state, remark in section.rows()
        if state == "absent"
    }


def names_of(module: str) -> list[str]:
    """Return the names that a module of ours has, for its ``__all__``."""
    theirs = module.removeprefix("synk.")
    return sorted(
        {
            name
            for section in sections()
            for name, state, _ in section.rows()
            if section.module == theirs and state != "absent"
        }
    )
