"""The table of Ops: one entry for each class, with all that synk knows of it.

What is said of an Op stands in one file of `rules`, or of `nn`: functions that are
registered under the word for what they tell, and facts (``known(MyOp, ...)``).

An Op of which a word is missing has what is right of any Op: it computes the same from
the same, its lengths are what PyTensor infers, and no engine is chosen for it. Entries
hold for classes that are derived from one, word by word, as long as these have none of
their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

from pytensor.graph.op import Op

Rule = TypeVar("Rule", bound=Callable[..., Any])


@dataclass
class OpEntry:
    """What is known of a class of Ops; None where nothing is."""

    # What the outputs are, by what the inputs are (see `domain`): takes a node and a
    # list of values; returns such a list, or the one value that all outputs have.
    placement: Callable | None = None
    # Whether the placement takes `Unknown` inputs. The others need not think of them:
    # what they would make of these is unknown.
    takes_unknown: bool | None = None
    # Whether it takes rows that a mask selects; no other sees them.
    takes_some_rows: bool | None = None
    # How a node is rewritten for more rows than are real: takes a `Padder`, a node and
    # what its inputs are; returns what it becomes (`padded.Made`), None where it may
    # stay as it is; raises `Refused` if it cannot be padded.
    padded: Callable | None = None
    # From this input on, all are lengths or bounds; of what is padded, of all rows.
    lengths_from: int | None = None
    # Whether numbers that follow from the number of rows may be computed with: of all
    # but lengths, values do not decide upon shapes.
    makes_sizes: bool | None = None
    # How long an axis is: takes a node, an output and an axis; returns its `Length`, or
    # None. Without it, it is what PyTensor infers, if that is a product of lengths.
    length: Callable | None = None
    # Whether JAX computes what other engines do, in every case. Some Ops raise errors
    # elsewhere, and in JAX go on with some number: of these it is not chosen for.
    same_in_jax: bool | None = None
    # Whether numba goes through it by elements, in loops that compile fast.
    by_elements: bool | None = None
    # What it takes: nothing, as a view or a shape, or to move or compare each element.
    # `choice.work` knows Ops that compute more by their kind.
    cost: Literal["view", "move"] | None = None


_table: dict[type[Op], dict[str, Any]] = {}
# By class of an Op that was met: its entry, with what it has from other classes.
_inherited: dict[type[Op], OpEntry] = {}


def entry_of(op: Op) -> OpEntry:
    """Return what is known of an Op."""
    found = _inherited.get(type(op))
    if found is None:
        found = _inherited[type(op)] = _with_bases(type(op))
    return found


def _with_bases(cls: type) -> OpEntry:
    words: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        words |= _table.get(base, {})
    return OpEntry(**words)


def known(*classes: Any, **words: Any) -> None:
    """Take what is known of classes of Ops, and of those derived from them."""
    for cls in classes:
        _table[cls] = _table.get(cls, {}) | words
    _inherited.clear()


def known_classes() -> frozenset[type[Op]]:
    """Return the classes of Ops that have an entry."""
    return frozenset(_table)


def placement(*classes: Any, **words: Any) -> Callable[[Rule], Rule]:
    """Make a function the placement of classes of Ops, with what else is known of them.

    The words are those of `OpEntry`.
    """
    words = {"takes_unknown": False, "takes_some_rows": False} | words
    return _as("placement", *classes, **words)


def _as(word: str, *classes: Any, **words: Any) -> Callable[[Rule], Rule]:
    """Make a function what an entry has under a word; a decorator."""

    def register(function: Rule) -> Rule:
        known(*classes, **{word: function}, **words)
        return function

    return register


# Of Ops that compute nothing, or what rewrites take away, mostly
VIEW: dict[str, Any] = {"makes_sizes": True, "same_in_jax": True}
VIEW |= {"by_elements": True, "cost": "view"}

padded, length = partial(_as, "padded"), partial(_as, "length")


# -- asking


class Refused(Exception):
    """A rule cannot show anything; the text goes on where "the Op ..." began."""


class UsersMistake(Exception):
    """What a user has said of an Op is wrong, and no rule."""


def ask(rule: Callable, *args: Any) -> Any:
    """Return what a rule says; raises `Refused` if it cannot say anything.

    One that fails in another way was not written for such a node, as another version of
    PyTensor may have it: the function can be made all the same, with less known of it.
    """
    try:
        return rule(*args)
    except (Refused, UsersMistake):
        raise
    except Exception as error:
        raise Refused(f"could not be examined: {error!r}") from error


def ask_or_none(rule: Callable, *args: Any) -> Any:
    """Return what a rule says; None if it cannot say anything."""
    try:
        return ask(rule, *args)
    except Refused:
        return None
