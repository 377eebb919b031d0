"""Random streams: fresh numbers in every call, and on every rank.

Each draw has a NumPy generator of its own in a shared variable, which the compiled
function moves on. The numbers are NumPy's and not those that Theano drew from the same
seed. `synk.function` gives each rank a stream of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytensor.tensor.random as ptr

from ..pytensor_versions import draw
from .generators import generator_variable

__all__ = ["RandomStreams", "Streams"]


def _floats(dtype: Any) -> str:
    return pytensor.config.floatX if dtype is None else str(dtype)


class Streams:
    """What both kinds of streams share."""

    def __init__(self, seed: Any = None) -> None:
        self.default_instance_seed = seed
        self.state_updates: list[tuple[Any, Any]] = []
        self._seeds = np.random.SeedSequence(seed)

    def seed(self, seed: Any = None) -> None:
        """Start every stream afresh.

        Parameters
        ----------
        seed : int or sequence of int, optional
            By default that of the constructor.
        """
        if seed is None:
            seed = self.default_instance_seed
        self._seeds = np.random.SeedSequence(seed)
        children = self._seeds.spawn(len(self.state_updates))
        for (shared, _), child in zip(self.state_updates, children, strict=True):
            shared.set_value(np.random.default_rng(child), borrow=True)

    @property
    def rstate(self) -> np.random.SeedSequence:
        """Where the seeds of streams to come are from; it can be set to another's."""
        return copy.deepcopy(self._seeds)

    @rstate.setter
    def rstate(self, state: np.random.SeedSequence) -> None:
        self._seeds = copy.deepcopy(state)

    def __getitem__(self, item: Any) -> Any:
        """Return the generator of a stream: ``srng[u.rng]``."""
        return item.get_value(borrow=True)

    def __setitem__(self, item: Any, value: Any) -> None:
        item.set_value(value, borrow=True)

    def updates(self) -> list[tuple[Any, Any]]:
        """Return the updates of all streams; `function` makes them by itself."""
        return list(self.state_updates)

    def gen(self, op: Callable, *args: Any, **kwargs: Any) -> Any:
        """Draw from one of PyTensor's random variables.

        Parameters
        ----------
        op : callable
            From ``pytensor.tensor.random``.
        *args, **kwargs
            Its arguments.
        """
        (child,) = self._seeds.spawn(1)
        rng = generator_variable(child)
        sample, update = draw(op, rng, *args, **kwargs)
        self.state_updates.append((rng, update))
        sample.rng, sample.update = rng, (rng, update)
        return sample

    def _draw(self, op: Callable, *args: Any, size: Any, ndim: Any, dtype: Any) -> Any:
        if ndim is not None and not isinstance(size, tuple | list | type(None)):
            size = pt.specify_shape(pt.as_tensor_variable(size), (ndim,))
        args = tuple(pt.as_tensor_variable(value) for value in args)
        sample = self.gen(op, *args, size=size)
        if sample.dtype == dtype:
            return sample
        cast: Any = pt.cast(sample, dtype)
        cast.rng, cast.update = sample.rng, sample.update
        return cast

    def uniform(
        self,
        size: Any = None,
        low: Any = 0.0,
        high: Any = 1.0,
        ndim: int | None = None,
        dtype: Any = None,
        **_: Any,
    ) -> Any:
        """Draw from [low, high), in ``config.floatX`` unless `dtype` is given."""
        return self._draw(
            ptr.uniform, low, high, size=size, ndim=ndim, dtype=_floats(dtype)
        )

    def normal(
        self,
        size: Any = None,
        avg: Any = 0.0,
        std: Any = 1.0,
        ndim: int | None = None,
        dtype: Any = None,
        truncate: bool = False,
        **_: Any,
    ) -> Any:
        """Draw from a normal distribution.

        Parameters
        ----------
        size : tuple or vector, optional
            The shape; by default that of `avg` and `std` together.
        avg, std : float or TensorVariable
            Mean and standard deviation.
        ndim : int, optional
            The length of a symbolic `size`.
        dtype : str, optional
            ``config.floatX`` unless given.
        truncate : bool
            Whether to stay within two standard deviations.
        """
        if truncate:
            return self.truncated_normal(size, avg, std, ndim, dtype)
        return self._draw(
            ptr.normal, avg, std, size=size, ndim=ndim, dtype=_floats(dtype)
        )

    def truncated_normal(
        self,
        size: Any = None,
        avg: Any = 0.0,
        std: Any = 1.0,
        ndim: int | None = None,
        dtype: Any = None,
        **_: Any,
    ) -> Any:
        """Draw from a normal distribution within two standard deviations."""
        within = 0.9544997361036416  # of the normal distribution: erf(sqrt(2))
        if size is None:
            size = pt.broadcast_arrays(pt.as_tensor(avg), pt.as_tensor(std))[0].shape
        u = self._draw(
            ptr.uniform, -within, within, size=size, ndim=ndim, dtype="float64"
        )
        value = avg + std * np.sqrt(2.0) * pt.erfinv(u)
        return pt.cast(value, _floats(dtype))

    def binomial(
        self,
        size: Any = None,
        n: Any = 1,
        p: Any = 0.5,
        ndim: int | None = None,
        dtype: Any = "int64",
        prob: Any = None,
        **_: Any,
    ) -> Any:
        """Draw the number of successes in `n` trials of probability `p` (`prob`)."""
        p = p if prob is None else prob
        if isinstance(n, int) and n == 1:  # numba tosses a coin faster
            return self._draw(ptr.bernoulli, p, size=size, ndim=ndim, dtype=str(dtype))
        return self._draw(ptr.binomial, n, p, size=size, ndim=ndim, dtype=str(dtype))

    def multinomial(
        self,
        size: Any = None,
        n: Any = 1,
        pvals: Any = None,
        ndim: int | None = None,
        dtype: Any = "int64",
        **_: Any,
    ) -> Any:
        """Draw the counts of each outcome in `n` trials.

        Parameters
        ----------
        size : tuple, optional
            The shape in front of the outcomes; by default one draw for each row.
        n : int
            Trials.
        pvals : vector or matrix
            The outcomes' probabilities, along the last axis.
        ndim, dtype
            As in `uniform`.
        """
        p = pt.cast([0.5, 0.5] if pvals is None else pvals, "float64")
        # Rows of float32 that sum to 1 + 1e-8 are an error in NumPy.
        p = p / p.sum(axis=-1, keepdims=True)
        return self._draw(ptr.multinomial, n, p, size=size, ndim=ndim, dtype=str(dtype))

    def poisson(
        self,
        size: Any = None,
        lam: Any = None,
        ndim: int | None = None,
        dtype: Any = "int64",
        **_: Any,
    ) -> Any:
        """Draw from a Poisson distribution of mean `lam`."""
        lam = 1.0 if lam is None else lam
        return self._draw(ptr.poisson, lam, size=size, ndim=ndim, dtype=str(dtype))


class RandomStreams(Streams):
    """`theano.tensor.shared_randomstreams.RandomStreams`.

    Parameters
    ----------
    seed : int or sequence of int, optional
        Without one, every run draws other numbers.
    """

    def random_integers(
        self,
        size: Any = None,
        low: Any = 0,
        high: Any = 1,
        ndim: int | None = None,
        dtype: Any = "int64",
    ) -> Any:
        """Draw integers from `low` to `high`, both included."""
        high = pt.as_tensor_variable(high) + 1
        return self._draw(
            ptr.integers, low, high, size=size, ndim=ndim, dtype=str(dtype)
        )

    def choice(
        self,
        size: Any = (),
        a: Any = 2,
        replace: bool = True,
        p: Any = None,
        ndim: int | None = None,
        dtype: Any = "int64",
    ) -> Any:
        """Draw from ``arange(a)`` or the vector `a`, with probabilities `p`."""
        drawn = self.gen(ptr.choice, a, size=size, replace=replace, p=p)
        return drawn if pt.as_tensor(a).ndim else pt.cast(drawn, dtype)

    def permutation(
        self,
        size: Any = None,
        n: Any = 1,
        ndim: int | None = None,
        dtype: Any = "int64",
    ) -> Any:
        """Draw permutations of ``arange(n)``: shape ``(*size, n)``."""
        shape = (*(() if size is None else tuple(size)), n)
        return pt.cast(pt.argsort(self.uniform(shape, dtype="float64"), -1), dtype)

    def shuffle_row_elements(self, input: Any) -> Any:
        """Return a matrix with the elements of each row in an order of their own."""
        order = pt.argsort(self.uniform(input.shape, dtype="float64"), axis=-1)
        return pt.take_along_axis(input, order, axis=-1)
