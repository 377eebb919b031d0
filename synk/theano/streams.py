"""Random streams: new numbers in every call, and on every rank.

Each draw has its own NumPy generator in a shared variable, which compiled functions
update. The numbers are NumPy's, and not those that Theano drew from the same seed.
`synk.function` gives each rank its own stream.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytensor.tensor.random as ptr

from .pytensor_versions import quiet

_GeneratorVariable: Any = type(pytensor.shared(np.random.default_rng(0)))
"""PyTensor's class of generators in shared variables."""


class Seedable(np.random.Generator):
    """A NumPy generator with the methods of Theano's, such as `seed`.

    As in Theano's tutorial: ``numbers = u.rng.get_value(borrow=True)``,
    ``numbers.seed(89234)``, ``u.rng.set_value(numbers, borrow=True)``.
    """

    def seed(self, seed: Any = None) -> None:
        """Start anew from `seed`, in place; from the system's entropy without one."""
        fresh = type(self.bit_generator)(seed)
        self.bit_generator.state = fresh.state

    def get_state(self) -> Any:
        """Return the state, for `set_state`."""
        return copy.deepcopy(self.bit_generator.state)

    def set_state(self, state: Any) -> None:
        """Set the state to one that `get_state` returned."""
        self.bit_generator.state = state


class SeedableVariable(_GeneratorVariable):
    """A generator in a shared variable, whose value is `Seedable`."""

    def get_value(
        self, borrow: bool = False, return_internal_type: bool = False
    ) -> Any:
        """Return the generator, or without `borrow` a copy."""
        value = super().get_value(borrow=borrow)
        return Seedable(value.bit_generator)

    def set_value(self, new_value: Any, borrow: bool = False) -> None:
        """Set the generator: with `borrow` this one, else a copy."""
        if isinstance(new_value, Seedable):
            new_value = np.random.Generator(new_value.bit_generator)
        super().set_value(new_value, borrow=borrow)


class RandomStreams:
    """`theano.tensor.shared_randomstreams.RandomStreams`.

    Without a `seed`, every run draws other numbers. In draws, `size` is the shape,
    `ndim` the length of a symbolic shape, and `dtype` that of the result, by default
    ``config.floatX`` for floats.
    """

    def __init__(self, seed: Any = None) -> None:
        self.default_instance_seed = seed
        self.state_updates: list[tuple[Any, Any]] = []
        self._seeds = np.random.SeedSequence(seed)

    def __getattr__(self, name: str) -> Any:
        instead = ""
        if hasattr(ptr, name):
            instead = f"; write gen(pytensor.tensor.random.{name}, ...)"
        raise AttributeError(f"{type(self).__name__} has no {name}{instead}", name=name)

    def seed(self, seed: Any = None) -> None:
        """Seed every stream anew, by default from the seed of the constructor."""
        if seed is None:
            seed = self.default_instance_seed
        self._seeds = np.random.SeedSequence(seed)
        children = self._seeds.spawn(len(self.state_updates))
        for (shared, _), child in zip(self.state_updates, children, strict=True):
            shared.set_value(np.random.default_rng(child), borrow=True)

    @property
    def rstate(self) -> np.random.SeedSequence:
        """The source of seeds for new streams; it can be set to another's `rstate`."""
        return copy.deepcopy(self._seeds)

    @rstate.setter
    def rstate(self, state: np.random.SeedSequence) -> None:
        self._seeds = copy.deepcopy(state)

    def gen(self, op: Callable, *args: Any, **kwargs: Any) -> Any:
        """Draw from one of PyTensor's random variables, with its arguments."""
        (child,) = self._seeds.spawn(1)
        plain = pytensor.shared(np.random.default_rng(child), borrow=True)
        rng = SeedableVariable(plain.type, plain.get_value(borrow=True), strict=False)
        with quiet():
            sample = op(*args, rng=rng, **kwargs)
            node = sample.owner
            while rng not in node.inputs:  # it views a draw, or is chosen by one
                node = node.inputs[-1].owner
            update = rng.default_update = node.outputs[0]
        self.state_updates.append((rng, update))
        sample.rng, sample.update = rng, (rng, update)
        return sample

    def _draw(
        self,
        op: Callable,
        args: Sequence[Any],
        size: Any,
        ndim: int | None = None,
        dtype: Any = None,
        nstreams: Any = None,
    ) -> Any:
        """Draw with the arguments that all methods take; `nstreams` has no effect."""
        if ndim is not None and not isinstance(size, tuple | list | type(None)):
            size = pt.specify_shape(pt.as_tensor_variable(size), (ndim,))
        sample = self.gen(op, *map(pt.as_tensor_variable, args), size=size)
        return _cast(sample, sample, dtype)

    def uniform(
        self, size: Any = None, low: Any = 0.0, high: Any = 1.0, *rest: Any, **kw: Any
    ) -> Any:
        """Draw from [low, high)."""
        return self._draw(ptr.uniform, (low, high), size, *rest, **kw)

    def normal(
        self,
        size: Any = None,
        avg: Any = 0.0,
        std: Any = 1.0,
        ndim: int | None = None,
        dtype: Any = None,
        nstreams: Any = None,
        truncate: bool = False,
    ) -> Any:
        """Draw from a normal distribution; with `truncate` within 2 `std` of `avg`."""
        if not truncate:
            return self._draw(ptr.normal, (avg, std), size, ndim, dtype)
        if size is None:
            size = (pt.as_tensor_variable(avg) + std).shape
        # By the inverse of the distribution function.
        within = math.erf(math.sqrt(2))
        drawn = self._draw(ptr.uniform, (-within, within), size, ndim, "float64")
        return _cast(drawn, avg + std * math.sqrt(2) * pt.erfinv(drawn), dtype)

    def binomial(
        self,
        size: Any = None,
        n: Any = 1,
        p: Any = 0.5,
        ndim: int | None = None,
        dtype: Any = "int64",
        nstreams: Any = None,
        prob: Any = None,
    ) -> Any:
        """Draw the number of successes in `n` trials of probability `p` (`prob`)."""
        p = p if prob is None else prob
        if isinstance(n, int) and n == 1:  # numba tosses a coin faster
            return self._draw(ptr.bernoulli, (p,), size, ndim, dtype)
        return self._draw(ptr.binomial, (n, p), size, ndim, dtype)

    def multinomial(
        self,
        size: Any = None,
        n: Any = 1,
        pvals: Any = (0.5, 0.5),
        ndim: int | None = None,
        dtype: Any = "int64",
        nstreams: Any = None,
    ) -> Any:
        """Draw the counts of each outcome in `n` trials, for each row of `pvals`.

        The outcomes, and their probabilities, are along the last axis.
        """
        p = pt.cast(pvals, "float64")
        # NumPy refuses probabilities that sum to more than 1, as those of float32 may.
        p = p / p.sum(axis=-1, keepdims=True)
        return self._draw(ptr.multinomial, (n, p), size, ndim, dtype)

    def random_integers(
        self,
        size: Any = None,
        low: Any = 0,
        high: Any = 1,
        ndim: int | None = None,
        dtype: Any = "int64",
    ) -> Any:
        """Draw integers from `low` to `high`, both included."""
        end = pt.as_tensor_variable(high) + 1
        return self._draw(ptr.integers, (low, end), size, ndim, dtype)

    def choice(
        self,
        size: Any = (),
        a: Any = 2,
        replace: bool = True,
        p: Any = None,
        ndim: int | None = None,
        dtype: Any = "int64",
    ) -> Any:
        """Draw from ``arange(a)``, or from a vector `a`, with probabilities `p`."""
        a = pt.as_tensor_variable(a)
        drawn = self.gen(ptr.choice, a, size=size, replace=replace, p=p)
        return _cast(drawn, drawn, a.dtype if a.ndim else dtype)

    def permutation(
        self,
        size: Any = None,
        n: Any = 1,
        ndim: int | None = None,
        dtype: Any = "int64",
    ) -> Any:
        """Draw permutations of ``arange(n)``, of the shape ``(*size, n)``."""
        shape = [n] if size is None else [*size, n]
        drawn = self._draw(ptr.uniform, (0.0, 1.0), shape, dtype="float64")
        return _cast(drawn, pt.argsort(drawn, axis=-1), dtype)

    def shuffle_row_elements(self, input: Any) -> Any:
        """Return each row of `input`, along the last axis, in an order of its own."""
        input = pt.as_tensor_variable(input)
        drawn = self._draw(ptr.uniform, (0.0, 1.0), input.shape, dtype="float64")
        order = pt.argsort(drawn, axis=-1)
        return _cast(drawn, pt.take_along_axis(input, order, axis=-1), input.dtype)


def _cast(drawn: Any, value: Any, dtype: Any) -> Any:
    """Return what is computed from a draw in a dtype, with its `rng` and `update`."""
    dtype = pytensor.config.floatX if dtype is None else str(dtype)
    if value.dtype != dtype:
        value = pt.cast(value, dtype)
    value.rng, value.update = drawn.rng, drawn.update
    return value


class MRG_RandomStreams(RandomStreams):
    """`theano.sandbox.rng_mrg.MRG_RandomStreams`, with NumPy's generators."""

    def __init__(self, seed: Any = 12345, use_cuda: bool | None = None) -> None:
        super().__init__(seed)
