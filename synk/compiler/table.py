"""The table of Ops: an `OpEntry` for each class, with all that synk knows of it.

Files of `rules` and `nn` fill it: they register functions by decorators (`placement`,
`padded`, `length`) and facts by ``known(MyOp, ...)``.

A field that is missing for an Op has a default: equal inputs give equal outputs,
lengths are those that PyTensor infers, and no engine is chosen for the Op. A class
inherits each field of its base classes' entries that its own entry does not set.
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
    """The facts about a class of Ops; None where one is not known."""

    # The rule, ``placement(node, values)``: takes the `Value` of each input (see
    # `domain`); returns those of the outputs, or the one `Value` of all outputs.
    placement: Callable | None = None
    # Whether the rule is called with `Unknown` inputs. Otherwise, if an input is
    # unknown, so are the outputs.
    takes_unknown: bool | None = None
    # Whether the rule is called with rows that a mask selects; else these are refused.
    takes_some_rows: bool | None = None
    # ``padded(padder, node, values)`` rewrites a node for padded rows: returns a
    # `padded.Made`, or None if the node may stay; raises `Refused` if neither is right.
    padded: Callable | None = None
    # Inputs from this index on are lengths or bounds; in padded graphs, of padded rows.
    lengths_from: int | None = None
    # Whether the Op may take values that follow from the number of rows: whether no
    # shape depends on the values of its inputs, lengths aside.
    makes_sizes: bool | None = None
    # ``length(node, output, axis)`` returns the `Length` of an axis, or None. Without
    # it, the length is the one PyTensor infers, if that is a product of lengths.
    length: Callable | None = None
    # Whether JAX always gives the same result as other engines. Where other engines
    # raise an error, JAX may go on with some number; the choice of engines avoids it.
    same_in_jax: bool | None = None
    # Whether numba computes the Op element by element, in loops that compile fast.
    by_elements: bool | None = None
    # "view": it costs nothing; "move": it moves or compares each element once.
    # `choice.work` knows the costs of other Ops.
    cost: Literal["view", "move"] | None = None


_table: dict[type[Op], dict[str, Any]] = {}
# By class of an Op: its entry with inherited fields, made when first asked for.
_inherited: dict[type[Op], OpEntry] = {}


def entry_of(op: Op) -> OpEntry:
    """Return the entry of an Op, with the fields that it inherits."""
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
    """Set fields of `OpEntry` for classes of Ops."""
    for cls in classes:
        _table[cls] = _table.get(cls, {}) | words
    _inherited.clear()


def known_classes() -> frozenset[type[Op]]:
    """Return the classes of Ops that have an entry."""
    return frozenset(_table)


def placement(*classes: Any, **words: Any) -> Callable[[Rule], Rule]:
    """Return a decorator that registers a function as the rule of classes of Ops.

    `words` sets further fields of `OpEntry`.
    """
    words = {"takes_unknown": False, "takes_some_rows": False} | words
    return _as("placement", *classes, **words)


def _as(word: str, *classes: Any, **words: Any) -> Callable[[Rule], Rule]:
    """Return a decorator that registers a function as the field `word` of entries."""

    def register(function: Rule) -> Rule:
        known(*classes, **{word: function}, **words)
        return function

    return register


# Fields of Ops that compute nothing, or that PyTensor's rewrites mostly remove.
VIEW: dict[str, Any] = {"makes_sizes": True, "same_in_jax": True}
VIEW |= {"by_elements": True, "cost": "view"}

padded, length = partial(_as, "padded"), partial(_as, "length")


# -- asking


class Refused(Exception):
    """A rule cannot show anything; the text continues "the Op ..."."""


class UsersMistake(Exception):
    """A user has registered an Op wrongly; unlike `Refused`, it reaches the user."""


def ask(rule: Callable, *args: Any) -> Any:
    """Call a rule and return its result; any failure becomes `Refused`.

    A rule may fail because another version of PyTensor makes other nodes. The function
    can be made all the same, with less known about it. Only `UsersMistake` passes.
    """
    try:
        return rule(*args)
    except (Refused, UsersMistake):
        raise
    except Exception as error:
        raise Refused(f"could not be examined: {error!r}") from error


def ask_or_none(rule: Callable, *args: Any) -> Any:
    """Call a rule and return its result; None if it is refused."""
    try:
        return ask(rule, *args)
    except Refused:
        return None
