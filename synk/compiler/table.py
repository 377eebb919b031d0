"""The table of Ops: one entry for each class, with all that synk knows of it.

What is said of an Op stands in one file of `rules`, or of `nn`, function by function,
each registered under the word for what it tells:

==============  ======================================================================
``placement``   what the outputs are, by what the inputs are; see `domain`
``padded``      how a node is rewritten for more rows than are real; see `padded`
``length``      how long an axis of an output is; see `lengths`
``value``       which length a scalar is
``entries``     which lengths a vector holds
``origins``     what a length follows from, where it is no product; see `origins`
==============  ======================================================================

Two more words are no functions (``known(MyOp, lengths_from=1)``): ``lengths_from`` and
``makes_sizes``, for what is padded; see `Entry`.

An Op of which a word is missing has what is right of any Op: it computes the same from
the same, and of its lengths nothing is known. Entries hold for classes that are derived
from one, word by word, as long as these have none of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from pytensor.graph.op import Op

Rule = TypeVar("Rule", bound=Callable[..., Any])


@dataclass
class Entry:
    """What is known of a class of Ops; None where nothing is.

    Attributes
    ----------
    placement : callable or None
        Takes a node and a list of what its inputs are; returns a list of what its
        outputs are, or one thing that all of them are.
    takes_unknown : bool
        Whether the placement takes `Unknown` inputs. The others need not think of them:
        what they would make of these is unknown.
    takes_some_rows : bool
        Whether it takes rows that a mask selects; no other sees them.
    padded : callable or None
        Takes a `Padder`, a node and what its inputs are; returns what it becomes, or
        None where it may stay as it is.
    lengths_from : int or None
        From this input on, all are lengths or bounds: of what is padded, those of all.
    makes_sizes : bool
        Whether numbers that follow from the number of rows may be computed with: of
        all but lengths, values do not decide upon shapes.
    length : callable or None
        Takes a node, an output and an axis; returns its `Length`, or None.
    value : callable or None
        Takes a node, an output that is a scalar, and "value"; likewise.
    entries : callable or None
        Takes a node whose output is a vector; returns a list of `Length`, or None.
    origins : callable or None
        Takes a node, an output and an axis; returns the lengths that its length is a
        function of, or None if there may be others.
    """

    placement: Callable | None = None
    takes_unknown: bool | None = None
    takes_some_rows: bool | None = None
    padded: Callable | None = None
    lengths_from: int | None = None
    makes_sizes: bool | None = None
    length: Callable | None = None
    value: Callable | None = None
    entries: Callable | None = None
    origins: Callable | None = None


_table: dict[type[Op], Entry] = {}
_inherited: dict[type[Op], Entry] = {}
"""By class of an Op that was met: its entry, with what it has from other classes."""


def entry_of(op: Op) -> Entry:
    """Return what is known of an Op."""
    found = _inherited.get(type(op))
    if found is None:
        found = _inherited[type(op)] = _with_bases(type(op))
    return found


def _with_bases(cls: type) -> Entry:
    found = Entry()
    for base in cls.__mro__:
        entry = _table.get(base)
        if entry is not None:
            given = {
                field.name: getattr(entry, field.name)
                for field in fields(Entry)
                if getattr(found, field.name) is None
            }
            found = replace(found, **given)
    return found


def known(*classes: Any, **words: Any) -> None:
    """Take what is known of classes of Ops, and of those derived from them."""
    for cls in classes:
        _table[cls] = replace(_table.get(cls, Entry()), **words)
    _inherited.clear()


def known_classes() -> frozenset[type[Op]]:
    """Return the classes of Ops that have an entry."""
    return frozenset(_table)


def placement(
    *classes: Any, takes_unknown: bool = False, takes_some_rows: bool = False
) -> Callable[[Rule], Rule]:
    """Make a function the placement of classes of Ops; see `Entry`."""
    return _as(
        classes,
        "placement",
        takes_unknown=takes_unknown,
        takes_some_rows=takes_some_rows,
    )


def padded(*classes: Any) -> Callable[[Rule], Rule]:
    """Make a function the way in which nodes of some Ops are padded; see `Entry`."""
    return _as(classes, "padded")


def length(*classes: Any) -> Callable[[Rule], Rule]:
    """Make a function tell lengths of axes of what some Ops compute; see `Entry`."""
    return _as(classes, "length")


def value(*classes: Any) -> Callable[[Rule], Rule]:
    """Make a function tell scalars that some Ops compute as lengths; see `Entry`."""
    return _as(classes, "value")


def entries(*classes: Any) -> Callable[[Rule], Rule]:
    """Make a function tell vectors that some Ops compute as lengths; see `Entry`."""
    return _as(classes, "entries")


def origins(*classes: Any) -> Callable[[Rule], Rule]:
    """Make a function tell what lengths of some Ops follow from; see `Entry`."""
    return _as(classes, "origins")


def _as(classes: Any, word: str, **words: Any) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        known(*classes, **{word: function}, **words)
        return function

    return register


# -- asking


class Refused(Exception):
    """A rule cannot show anything; the text goes on where "the Op ..." began."""


class UsersMistake(Exception):
    """What a user has said of an Op is wrong, and no rule."""


def ask(rule: Callable, *args: Any) -> Any:
    """Return what a rule says.

    Raises
    ------
    Refused
        If it cannot say anything. A rule that fails in another way was not written for
        such a node, as another version of PyTensor may have it: the function can be
        made all the same, with less that is known of it.
    """
    try:
        return rule(*args)
    except (Refused, UsersMistake):
        raise
    except Exception as error:
        raise Refused(f"could not be examined: {error!r}") from error


def told(rule: Callable | None, *args: Any) -> Any:
    """Return what a rule says; None if there is none, or it cannot say anything."""
    if rule is None:
        return None
    try:
        return ask(rule, *args)
    except Refused:
        return None
