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

from dataclasses import dataclass, field
from functools import cache

STATES = ("same", "mapped", "written", "absent")


@dataclass(frozen=True)
class Section:
    """The names of one module.

    Parameters
    ----------
    title : str
        Of its section of the page.
    module : str
        The module in Theano.
    same : str
        Names, separated by blanks; with ``at``, where PyTensor has them.
    mapped, written, absent : dict of str to str
        Of a name, what is said of it; keys may hold several names.
    at : str
        Modules of PyTensor, separated by blanks.
    """

    title: str
    module: str
    same: str = ""
    mapped: dict[str, str] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    at: str = ""

    def rows(self) -> list[tuple[str, str, str]]:
        """Return (name, state, remark) of every name, in order of the names."""
        rows = [(name, "same", "") for name in self.same.split()]
        for state in STATES[1:]:
            for names, remark in getattr(self, state).items():
                rows += [(name, state, remark) for name in names.split()]
        return sorted(rows, key=lambda row: (row[0].lower(), row[0]))


def sections() -> list[Section]:
    """Return the whole table."""
    from . import names_network, names_tensor, names_theano

    return [
        *names_theano.SECTIONS,
        *names_tensor.SECTIONS,
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
