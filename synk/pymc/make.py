"""`synk.pymc.logp_dlogp`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import SplitError
from ..user_frames import callers_level
from .density import Density
from .names import present


def make(model: Any, variables: Sequence[Any] | None, mode: Any) -> Density:
    """Return the density of a model; see `synk.pymc.logp_dlogp`."""
    model = present(model)
    values = values_of(model, variables)
    made = Density(model, values, model.initial_point(0), mode)
    if not made.parts:
        raise SplitError(nothing_shared(made))
    if made.refused:
        warnings.warn(f"synk.pymc: {serial_terms(made)}", stacklevel=callers_level())
    return made


def values_of(model: Any, variables: Sequence[Any] | None) -> list[Any]:
    """Return the value variables that a gradient is by.

    Raises
    ------
    TypeError
        For one that is discrete.
    """
    if variables is None:
        return list(model.continuous_value_vars)
    values = [model.rvs_to_values.get(var, var) for var in variables]
    for var in values:
        if not np.issubdtype(var.type.dtype, np.floating):
            raise TypeError(f"{var.name} is discrete: there is no gradient by it")
    return values


def serial_terms(density: Density) -> str:
    """Say which terms are computed serially, beside the others."""
    return f"terms that are computed serially: {_told(density.faults)}"


def nothing_shared(density: Density) -> str:
    """Say why ranks share no term of a density."""
    faults = density.faults
    if not faults:
        text = "no term of this model has data along a dimension: nothing to share"
        return f"{text}{_hidden(density.hidden)}"
    if len(set(faults.values())) > 1:
        return f"no term is computed by rows: {_told(faults)}"
    names, why = ", ".join(faults), next(iter(faults.values()))
    if len(faults) == 1:
        return f"the term of {names} is not computed by rows: {why}"
    return f"the terms of {names} are not computed by rows: {why}"


def _hidden(ops: Sequence[str]) -> str:
    """Say that data may lie in Ops, which they should be given as inputs."""
    if not ops:
        return ""
    return (
        f"; what {ops[0]} computes with may lie in the Op, where it is not seen: give"
        " the Op its data as inputs, with an entry for each row"
    )


def _told(faults: Mapping[str, str]) -> str:
    return "; ".join(f"{name}, as {why}" for name, why in faults.items())
