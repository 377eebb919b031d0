"""`function`, `shared`, `clone` with Theano's keywords and modes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import pytensor
from pytensor.compile import In as _In
from pytensor.compile import Out, SharedVariable
from pytensor.graph.replace import clone_replace

from ..engines.numba_code import with_own_code
from ..engines.quiet import ignoring
from .pytensor_versions import ADVICE, DEBUGMODE, NANGUARDMODE, first_of

__all__ = ["In", "Out", "Param", "SharedVariable", "clone", "function", "shared"]


class In(_In):
    """An input of `function` with options; PyTensor's, and it may have a default.

    Parameters
    ----------
    variable : Variable
        The input.
    name : str, optional
        What calls name it by; the variable's name unless given.
    value : object, optional
        Its value where a call gives none.
    **options
        As in PyTensor.
    """

    def __init__(
        self, variable: Any, name: str | None = None, value: Any = None, **options: Any
    ) -> None:
        super().__init__(variable, name=name, **options)
        self.default = value


def Param(
    variable: Any,
    default: Any = None,
    name: str | None = None,
    mutable: bool = False,
    strict: bool = False,
    allow_downcast: bool | None = None,
    implicit: bool | None = None,
    borrow: bool | None = None,
) -> In:
    """Return an input of `function` with options: `In` under its oldest name.

    Parameters
    ----------
    variable : Variable
        The input.
    default : object, optional
        Its value where a call gives none.
    name, mutable, strict, allow_downcast, implicit, borrow
        As in `In`.
    """
    return In(
        variable,
        name=name,
        value=default,
        mutable=mutable,
        strict=strict,
        allow_downcast=allow_downcast,
        implicit=implicit,
        borrow=borrow,
    )


class Filled:
    """A compiled function with inputs that have defaults, or outputs with names.

    PyTensor has given up both.
    """

    def __init__(self, compiled: Any, inputs: list, names: list[str] | None) -> None:
        self._compiled = compiled
        self._inputs = inputs
        self._names = names

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function; return its outputs, by name if they have names."""
        values = list(args)
        for given in self._inputs[len(args) :]:
            name = given.name
            if name in kwargs:
                values.append(kwargs.pop(name))
            elif getattr(given, "default", None) is not None:
                values.append(given.default)
            else:
                raise TypeError(f"the input {name or given} has no value")
        results = self._compiled(*values, **kwargs)
        if self._names is None:
            return results
        return dict(zip(self._names, results, strict=True))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._compiled, name)


def get_mode(mode: Any) -> Any:
    """Return PyTensor's mode for one of Theano's names.

    Parameters
    ----------
    mode : str or Mode or None
        ``"FAST_RUN"``, ``"FAST_COMPILE"``, ``"DebugMode"`` (``"DEBUG_MODE"``),
        ``"NanGuardMode"``, or what PyTensor takes.
    """
    if mode in ("DebugMode", "DEBUG_MODE"):
        return first_of(DEBUGMODE, "DebugMode")()
    if mode == "NanGuardMode":
        guard = first_of(NANGUARDMODE, "NanGuardMode")
        return guard(nan_is_error=True, inf_is_error=True, big_is_error=True)
    if mode in ("ProfileMode", "PROFILE_MODE"):
        raise ValueError(f"no {mode}: use function(..., profile=True)")
    return mode


def function(
    inputs: Any,
    outputs: Any = None,
    mode: Any = None,
    updates: Any = None,
    givens: Any = None,
    no_default_updates: Any = False,
    accept_inplace: bool = False,
    name: str | None = None,
    rebuild_strict: bool = True,
    allow_input_downcast: bool | None = None,
    profile: Any = None,
    on_unused_input: str | None = None,
) -> Any:
    """Compile a graph; ``pytensor.function`` with Theano's arguments.

    Parameters
    ----------
    inputs : list of Variable, In or Param
        What a call takes.
    outputs : Variable, list of Variable, or dict of str to Variable, optional
        What a call returns.
    mode : str or Mode, optional
        See `get_mode`.
    updates : dict or list of (shared, new), optional
        New values of shared variables.
    givens : dict or list of pairs, optional
        Substitutions in the graph.
    no_default_updates, accept_inplace, name, rebuild_strict, allow_input_downcast,
    profile, on_unused_input
        As in PyTensor.
    """
    if not isinstance(inputs, list | tuple):
        raise TypeError(
            f"inputs must be a list or a tuple, got {type(inputs).__name__}"
        )
    names = None
    if isinstance(outputs, Mapping):
        if not all(isinstance(key, str) for key in outputs):
            raise TypeError("outputs given as a dict need strings as keys")
        names = sorted(outputs)
        outputs = [outputs[key] for key in names]
    mode = get_mode(mode)
    with ignoring(mode, *ADVICE):
        compiled = with_own_code(
            mode,
            pytensor.function,
            list(inputs),
            outputs,
            mode=mode,
            updates=updates,
            givens=givens,
            no_default_updates=no_default_updates,
            accept_inplace=accept_inplace,
            name=name,
            rebuild_strict=rebuild_strict,
            allow_input_downcast=allow_input_downcast,
            profile=profile or None,  # debugprint cannot do with False
            on_unused_input=on_unused_input,
        )
    if names is None and all(getattr(i, "default", None) is None for i in inputs):
        return compiled
    return Filled(compiled, list(inputs), names)


def shared(
    value: Any,
    name: str | None = None,
    strict: bool = False,
    allow_downcast: bool | None = None,
    **kwargs: Any,
) -> SharedVariable:
    """Make a shared variable; ``pytensor.shared`` with Theano's keywords.

    Parameters
    ----------
    value : object
        Its first value.
    name, strict, allow_downcast
        As in PyTensor.
    **kwargs
        `borrow`; `broadcastable`, the axes whose length stays 1; `target`, which had
        one meaning without a GPU and is checked for it.
    """
    target = kwargs.pop("target", "cpu")
    if target != "cpu":
        raise TypeError(f"target={target!r}: there is 'cpu' only; see synk.fork")
    broadcastable = kwargs.pop("broadcastable", None)
    if broadcastable is not None:
        kwargs["shape"] = tuple(1 if one else None for one in broadcastable)
    return pytensor.shared(
        value, name=name, strict=strict, allow_downcast=allow_downcast, **kwargs
    )


def clone(
    output: Any,
    replace: Any = None,
    strict: bool = True,
    share_inputs: bool = True,
    copy_inputs: Any = None,
) -> Any:
    """Copy a graph with some variables replaced.

    Parameters
    ----------
    output : Variable or list of Variable
        The graph.
    replace : dict or list of pairs, optional
        What stands for what.
    strict : bool
        Whether replacements must have the very type of what they replace.
    share_inputs : bool
        Whether the copy has the original's inputs, or copies of them.
    copy_inputs : bool, optional
        The older name of `share_inputs`.
    """
    if copy_inputs is not None:
        warnings.warn(
            "clone's copy_inputs is called share_inputs", DeprecationWarning, 2
        )
        share_inputs = copy_inputs
    return clone_replace(
        output, replace, rebuild_strict=strict, copy_inputs_over=share_inputs
    )
