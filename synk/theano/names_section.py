"""A section of the table of Theano's names; see `names`."""

from __future__ import annotations

from dataclasses import dataclass, field

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
