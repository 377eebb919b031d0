"""`theano.gradient`: PyTensor's, with Theano's `Lop`, `Rop` and Hessian products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.gradient as _pt
from pytensor.gradient import (
    DisconnectedInputError,
    DisconnectedType,
    GradClip,
    GradScale,
    NullTypeGradError,
    ZeroGrad,
    disconnected_grad,
    grad,
    grad_clip,
    grad_not_implemented,
    grad_scale,
    grad_undefined,
    hessian,
    jacobian,
    numeric_grad,
    subgraph_grad,
    undefined_grad,
    zero_grad,
)

from .forwarding import forward
from .pytensor_versions import pullback, pushforward

__all__ = [
    "DisconnectedInputError",
    "DisconnectedType",
    "GradClip",
    "GradScale",
    "Lop",
    "NullTypeGradError",
    "Rop",
    "ZeroGrad",
    "consider_constant",
    "disconnected_grad",
    "grad",
    "grad_clip",
    "grad_not_implemented",
    "grad_scale",
    "grad_undefined",
    "hessian",
    "hessian_times_vector",
    "jacobian",
    "numeric_grad",
    "subgraph_grad",
    "undefined_grad",
    "verify_grad",
    "zero_grad",
]

consider_constant = zero_grad
"""Older name of `zero_grad`."""


def Lop(
    f: Any,
    wrt: Any,
    eval_points: Any,
    consider_constant: Any = None,
    disconnected_inputs: str = "raise",
) -> Any:
    """Return `eval_points` times the Jacobian of `f` with respect to `wrt`.

    Parameters
    ----------
    f, wrt : Variable or list of Variable
        What is differentiated, and by what.
    eval_points : Variable or list of Variable
        Vectors with the shapes of `f`.
    consider_constant : list of Variable, optional
        Not to differentiate through.
    disconnected_inputs : {"raise", "warn", "ignore"}
        What to do of a `wrt` that `f` does not depend on.
    """
    return pullback(
        f,
        wrt,
        eval_points,
        consider_constant=consider_constant,
        disconnected_inputs=disconnected_inputs,
    )


def Rop(
    f: Any,
    wrt: Any,
    eval_points: Any,
    disconnected_outputs: str = "raise",
    return_disconnected: str = "zero",
) -> Any:
    """Return the Jacobian of `f` with respect to `wrt` times `eval_points`.

    Parameters
    ----------
    f, wrt : Variable or list of Variable
        What is differentiated, and by what.
    eval_points : Variable or list of Variable
        Vectors with the shapes of `wrt`.
    disconnected_outputs, return_disconnected
        As in PyTensor.
    """
    return pushforward(
        f,
        wrt,
        eval_points,
        disconnected_outputs=disconnected_outputs,
        return_disconnected=return_disconnected,
    )


def hessian_times_vector(
    gradient: Any, parameter: Any, vector: Any, r_op: bool = False
) -> Any:
    """Return the Hessian of a cost times `vector`, without the Hessian.

    Parameters
    ----------
    gradient : Variable or list of Variable
        The cost's gradient with respect to `parameter`.
    parameter : Variable or list of Variable
        The parameters.
    vector : Variable or list of Variable
        With the shapes of `parameter`.
    r_op : bool
        Whether to go forward through the gradient's graph (`Rop`) and not back.

    References
    ----------
    Pearlmutter, "Fast exact multiplication by the Hessian", Neural Computation 6
    (1994).
    """
    if r_op:
        return Rop(gradient, parameter, vector)
    several = isinstance(gradient, list | tuple)
    gradients: Sequence = gradient if several else [gradient]
    vectors: Sequence = vector if isinstance(vector, list | tuple) else [vector]
    product = sum((g * v).sum() for g, v in zip(gradients, vectors, strict=True))
    return grad(product, parameter, consider_constant=list(vectors))


def verify_grad(
    fun: Any,
    pt: Sequence,
    n_tests: int = 2,
    rng: Any = None,
    eps: float | None = None,
    out_type: str | None = None,
    abs_tol: float | None = None,
    rel_tol: float | None = None,
    mode: Any = None,
    cast_to_output_type: bool = False,
    no_debug_ref: bool = True,
) -> None:
    """Compare a gradient with finite differences; raise where they differ.

    Parameters
    ----------
    fun : callable
        Takes variables, returns one.
    pt : list of array_like
        Where to do it.
    rng : numpy.random.Generator or RandomState, optional
        For the random projections; without one, a generator of a fixed seed.
    n_tests, eps, out_type, abs_tol, rel_tol, mode, cast_to_output_type, no_debug_ref
        As in PyTensor.
    """
    _pt.verify_grad(
        fun,
        [np.asarray(value) for value in pt],
        n_tests=n_tests,
        rng=np.random.default_rng(0) if rng is None else rng,
        eps=eps,
        out_type=out_type,
        abs_tol=abs_tol,
        rel_tol=rel_tol,
        mode=mode,
        cast_to_output_type=cast_to_output_type,
        no_debug_ref=no_debug_ref,
    )


__getattr__, __dir__ = forward(__name__, "pytensor.gradient")
