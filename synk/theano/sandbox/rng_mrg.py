"""`theano.sandbox.rng_mrg`: random streams under the name of their old algorithm."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt

from ..tensor.streams import Streams

__all__ = ["MRG_RandomStreams"]


class MRG_RandomStreams(Streams):
    """`theano.sandbox.rng_mrg.MRG_RandomStreams`, with NumPy's generators.

    Parameters
    ----------
    seed : int or sequence of int
        Where to begin.
    use_cuda : bool, optional
        Has no meaning any more.
    """

    def __init__(self, seed: Any = 12345, use_cuda: bool | None = None) -> None:
        super().__init__(seed)

    def choice(
        self,
        size: Any = 1,
        a: Any = None,
        replace: bool = True,
        p: Any = None,
        ndim: int | None = None,
        dtype: Any = "int64",
        **_: Any,
    ) -> Any:
        """Draw `size` column numbers for each row of probabilities `p`.

        Parameters
        ----------
        size : int
            How many for each row.
        a : None
            As in Theano, no other value is implemented.
        replace : bool
            Whether one number may come more than once in a row.
        p : matrix
            Probabilities, one distribution for each row.
        ndim, dtype
            As in `uniform`.
        """
        if a is not None:
            raise TypeError("choice: a must be None; index your values by the result")
        p = pt.as_tensor_variable(p)
        if p.ndim != 2:
            raise ValueError(f"choice: p must be a matrix, got {p.ndim} dimensions")
        if not replace:
            return self.multinomial_wo_replacement(n=size, pvals=p, dtype=dtype)
        u = self.uniform((p.shape[0], size), dtype="float64")
        steps = pt.cumsum(pt.cast(p, "float64"), axis=-1)
        u = u * steps[:, -1][:, None]
        return pt.cast((u[:, :, None] >= steps[:, None, :]).sum(axis=-1), dtype)

    def multinomial_wo_replacement(
        self,
        size: Any = None,
        n: Any = 1,
        pvals: Any = None,
        ndim: int | None = None,
        dtype: Any = "int64",
        **_: Any,
    ) -> Any:
        """Draw `n` different column numbers for each row of `pvals`.

        Notes
        -----
        The largest of log p plus Gumbel noise (Vieira 2014, "Gumbel-max trick and
        weighted reservoir sampling").
        """
        p = pt.cast(pvals, "float64")
        u = self.uniform(p.shape, dtype="float64")
        keys = pt.log(p) - pt.log(-pt.log(u))
        return pt.cast(pt.argsort(-keys, axis=-1)[:, :n], dtype)
