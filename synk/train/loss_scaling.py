"""Loss scaling: gradients that float16 can hold.

The smallest gradients of a network would be 0 in float16, which ends at 6e-8. So the
loss is multiplied by a factor, the *scale*, which multiplies all gradients; they are
divided by it in float32. If the scale is too large, some gradient becomes infinite or
NaN: that step is skipped, and the scale is halved. (Micikevicius et al. 2018, "Mixed
precision training", section 3.2; Apex, PyTorch and others search for the scale alike.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.tensor.type import DenseTensorType


class LossScale:
    """The scale of a loss, and its changes from step to step.

    A step whose gradients overflow halves the scale; `interval` steps in a row without
    overflow double it. The scale is a power of two, so scaling rounds nothing.

    Parameters
    ----------
    initial : float
        The first scale: a power of two.
    interval : int
        The number of good steps after which the scale is doubled.
    smallest, largest : float
        The limits of the scale, powers of two.
    name : str
        The name of the variables, as in checkpoints.

    Attributes
    ----------
    value : SharedVariable
        The scale; float32, of no dimensions.
    good_steps : SharedVariable
        The number of good steps in a row since the scale last changed; int32.

    Raises
    ------
    ValueError
        If a scale is not a power of two, or the three are not in order.

    Notes
    -----
    All ranks make the same decisions if the gradients were reduced over the ranks, as
    those of :func:`synk.grad` are: if a value is not finite on one rank, neither is the
    result.

    Examples
    --------
    >>> import numpy as np, pytensor, pytensor.tensor as pt, synk
    >>> x = pt.vector("x")
    >>> w = pytensor.shared(np.float64(4.0), "w")
    >>> scale = synk.LossScale(2.0**10, interval=2)
    >>> loss = ((x - w) ** 2).mean()
    >>> grads = scale.unscaled(synk.grad(scale.scaled(loss), [w]))
    >>> updates = scale.guarded(synk.updates.sgd(grads, [w], 0.25), grads)
    >>> train = synk.function([x], loss, updates=updates, mode="FAST_COMPILE")
    >>> with synk.session(2):
    ...     for rows in ([0.0, 0.0], [0.0, np.inf], [0.0, 0.0], [0.0, 0.0]):
    ...         _ = train(rows)
    ...         print(float(w.get_value()), float(scale.value.get_value()))
    2.0 1024.0
    2.0 512.0
    1.0 512.0
    0.5 1024.0
    """

    def __init__(
        self,
        initial: float = 2.0**15,
        *,
        interval: int = 2000,
        smallest: float = 1.0,
        largest: float = 2.0**24,
        name: str = "loss_scale",
    ) -> None:
        for what, number in (
            ("initial", initial),
            ("smallest", smallest),
            ("largest", largest),
        ):
            if not (
                number > 0 and math.isfinite(number) and math.frexp(number)[0] == 0.5
            ):
                raise ValueError(f"{what} must be a power of two, got {number!r}")
        if not smallest <= initial <= largest:
            raise ValueError(
                f"smallest={smallest!r}, initial={initial!r} and largest={largest!r}"
                " must be in this order"
            )
        if interval < 1:
            raise ValueError(f"interval must be at least 1, got {interval!r}")
        self._interval, self._smallest, self._largest = interval, smallest, largest
        self.value = pytensor.shared(np.array(initial, "float32"), name)
        self.good_steps = pytensor.shared(np.array(0, "int32"), f"{name}:good_steps")

    def scaled(self, loss: Any) -> Any:
        """Return the loss times the scale, in the loss's dtype, to take gradients of.

        Parameters
        ----------
        loss : scalar variable
        """
        return loss * pt.cast(self.value, loss.type.dtype)

    def unscaled(self, gradients: Any) -> Any:
        """Return gradients of a scaled loss, divided by the scale.

        Parameters
        ----------
        gradients : TensorVariable, or list of these
            Already combined over all ranks, as by :func:`synk.grad`.
        """
        if not isinstance(gradients, (list, tuple)):
            return gradients / pt.cast(self.value, gradients.type.dtype)
        return [self.unscaled(gradient) for gradient in gradients]

    def guarded(
        self, updates: Any, gradients: Sequence
    ) -> dict[SharedVariable, Variable]:
        """Return updates that keep old values unless all gradients are finite.

        The result is for :func:`synk.function`, and has the scale's own updates, too.

        Parameters
        ----------
        updates : dict, or list of pairs
            Those of an update rule, and any others that a bad step must not make.
            Random streams go on in a bad step.
        gradients : TensorVariable, or list of these
            Those of all parameters, scaled or not.
        """
        if not isinstance(gradients, (list, tuple)):
            gradients = [gradients]
        good = finite(gradients)
        pairs: Iterable = updates.items() if isinstance(updates, Mapping) else updates
        made: dict[SharedVariable, Variable] = {}
        for var, new in pairs:
            if isinstance(var.type, DenseTensorType):
                new = pt.switch(good, var.type.filter_variable(new, True), var)
            made[var] = new
        return made | self._moved(good)

    def _moved(self, good: Any) -> dict[SharedVariable, Variable]:
        """Return the updates of the scale and its count of good steps."""
        value, steps = self.value, self.good_steps + np.int32(1)
        is_time = pt.ge(steps, np.int32(self._interval))
        doubled = pt.minimum(value * np.float32(2), np.float32(self._largest))
        halved = pt.maximum(value * np.float32(0.5), np.float32(self._smallest))
        none = pt.zeros_like(self.good_steps)
        return {
            value: pt.switch(good, pt.switch(is_time, doubled, value), halved),
            self.good_steps: pt.switch(good, pt.switch(is_time, none, steps), none),
        }


def finite(values: Sequence) -> Any:
    """Return, as a graph, whether all elements of all values are finite."""
    bad = [pt.any(pt.or_(pt.isnan(value), pt.isinf(value))) for value in values]
    # Not by `invert`, which PyTensor without C code computes as an int's: -2 for True.
    return pt.eq(pt.any(pt.stack(bad)), np.array(False))
