"""`function`, `shared`, `clone` with Theano's keywords and modes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import pytensor
from pytensor import config
from pytensor.compile import SharedVariable, UnusedInputError
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors

from ..also_named import also_named
from ..engines import engine_for
from ..engines.conversions import own_mode
from ..engines.numba_code import ignoring
from ..engines.plain_functions import show_as_numpy
from .compiled import Filled, Slot, as_theanos
from .pytensor_versions import ADVICE


def _mode_of(mode: Any) -> Any:
    """Return PyTensor's mode for one of Theano's names."""
    if mode in ("DebugMode", "DEBUG_MODE"):
        return import_module("synk.theano.compile.debugmode").DebugMode()
    if mode == "NanGuardMode":
        guard = import_module("synk.theano.compile.nanguardmode").NanGuardMode
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

    Inputs are a list of variables, `In` or `Param`. If outputs are a dict, calls return
    a dict. `mode` is ``"DebugMode"``, ``"NanGuardMode"``, or a mode of PyTensor.
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
    slots = [Slot.of(given, allow_input_downcast) for given in inputs]
    stateful = [slot for slot in slots if slot.state is not None]
    # Before the user's givens, which may be computed from these variables.
    states = [(slot.variable, slot.state) for slot in stateful]
    updates = _pairs(updates) + [
        (slot.state, slot.given.update)
        for slot in stateful
        if slot.given.update is not None
    ]
    inputs = [slot.given or slot.variable for slot in slots if slot.state is None]
    options = {
        "updates": updates,
        "givens": states + _pairs(givens),
        "no_default_updates": no_default_updates,
        "accept_inplace": accept_inplace,
        "name": name,
        "rebuild_strict": rebuild_strict,
        "allow_input_downcast": allow_input_downcast,
        "profile": profile or None,  # debugprint fails with False
        "on_unused_input": on_unused_input,
    }
    given = {"inputs": inputs, "outputs": outputs, "mode": _mode_of(mode)}
    made = _make(_compiled, **given, **options)
    if names is None and not stateful:
        return made
    with_default = [slot.variable for slot in stateful if slot.default is not None]
    if with_default and (on_unused_input or config.on_unused_input) == "raise":
        listed = outputs if isinstance(outputs, list | tuple) else [outputs]
        roots = [getattr(each, "variable", each) for each in listed]
        roots += [new for _, new in updates + _pairs(givens)]
        used = set(ancestors([var for var in roots if isinstance(var, Variable)]))
        for variable in with_default:
            if variable not in used:
                text = f"the graph does not use the input {variable}"
                raise UnusedInputError(text)
    return Filled(made, slots, names)


def _compiled(mode: Any, **given: Any) -> Any:
    with ignoring(mode, *ADVICE):
        compiled = pytensor.function(mode=own_mode(mode), **given)
    if engine_for(mode).ON_DEVICE:
        show_as_numpy(compiled.get_shared())
    return as_theanos(compiled)


def _at_once(compiled: Callable[..., Any], **given: Any) -> Any:
    return compiled(**given)


_make: Callable[..., Any] = _at_once


def make_by(make: Callable[..., Any] | None) -> None:
    """Make `function` call `make` from now on; None: compile at once again.

    `make` is called with a function that compiles, and its arguments by name, which are
    those of ``pytensor.function``.
    """
    global _make
    _make = make or _at_once


def _pairs(given: Any) -> list[tuple[Any, Any]]:
    """Return updates or givens as a list of pairs."""
    if given is None:
        return []
    return list(given.items() if isinstance(given, Mapping) else given)


pfunc = also_named("params", "inputs")(function)


def shared(
    value: Any,
    name: str | None = None,
    strict: bool = False,
    allow_downcast: bool | None = None,
    **kwargs: Any,
) -> SharedVariable:
    """Make a shared variable; ``pytensor.shared`` with Theano's keywords.

    These are `broadcastable`, which names the axes whose length stays 1, and `target`,
    which must be "cpu".
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

    If `strict`, a replacement must have the type of the variable that it replaces. The
    copy has the original's inputs, or with ``share_inputs=False`` copies of them.
    `copy_inputs` is an older name of `share_inputs`.
    """
    if copy_inputs is not None:
        warnings.warn(
            "clone's copy_inputs is called share_inputs", DeprecationWarning, 2
        )
        share_inputs = copy_inputs
    return clone_replace(
        output, replace, rebuild_strict=strict, copy_inputs_over=share_inputs
    )
