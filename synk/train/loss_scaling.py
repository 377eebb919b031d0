"""Loss scaling: gradients that float16 can hold.

The smallest gradients of a network would be 0 in float16, which ends at 6e-8. So the
loss is multiplied by a number, which all gradients then are, and that is undone in
float32. Where it is too large, some gradient becomes infinite or not a number: that
step is not made, and the number is halved. (Micikevicius et al. 2018, "Mixed precision
training", section 3.2; the search for the number is that of Apex, PyTorch and others.)
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
    """A number that a loss is multiplied by, and how it changes from step to step.

    It is halved in a step whose gradients overflow, and doubled after `interval` steps
    in which none did. Powers of two only, so that nothing is rounded.

    Parameters
    ----------
    initial : float
        The number at first: a power of two.
    interval : int
        After so many good steps it is doubled.
    smallest, largest : float
        It stays within these, powers of two.
    name : str
        Of the variables, by which checkpoints know them.

    Attributes
    ----------
    value : SharedVariable
        The number; float32, of no dimensions.
    good_steps : SharedVariable
        How many steps in a row were good since it last changed; int32.

    Raises
    ------
    ValueError
        If a number is no power of two, or they are not in order.

    Notes
    -----
    All ranks come to the same decisions if the gradients were reduced over all of them,
    as those of :func:`synk.grad` are: what is not finite on one is not finite in the
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
        """Return a loss times the number, of the loss's dtype, to take gradients of.

        Parameters
        ----------
        loss : scalar variable
        """
        return loss * pt.cast(self.value, loss.type.dtype)

    def unscaled(self, gradients: Any) -> Any:
        """Return gradients of a scaled loss divided by the number.

        Parameters
        ----------
        gradients : TensorVariable, or list of these
            Already combined over all ranks, by :func:`synk.grad` for one.
        """
        if not isinstance(gradients, (list, tuple)):
            return gradients / pt.cast(self.value, gradients.type.dtype)
        return [self.unscaled(gradient) for gradient in gradients]

    def guarded(
        self, updates: Any, gradients: Sequence
    ) -> dict[SharedVariable, Variable]:
        """Return updates that are made if all gradients are finite, and the number's.

        They are for :func:`synk.function`, by shared variable.

        Parameters
        ----------
        updates : dict, or list of pairs
            Of an update rule and whatever else a bad step must not change; variables
            keep their values in one. Random streams go on.
        gradients : TensorVariable, or list of these
            Of all parameters, scaled or not.
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
        """Return the updates of the number itself."""
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
    """Return whether no element of any value is infinite or not a number."""
    bad = [pt.any(pt.or_(pt.isnan(value), pt.isinf(value))) for value in values]
    # Not by `invert`: without C code PyTensor computes that of a number, -2 for True.
    return pt.eq(pt.any(pt.stack(bad)), np.array(False))
