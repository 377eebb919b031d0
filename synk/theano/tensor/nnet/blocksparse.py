"""`theano.tensor.nnet.blocksparse`: products of some blocks of a matrix.

References
----------
Bengio et al., "Estimating or propagating gradients through stochastic neurons for
conditional computation", arXiv 1308.3432.
"""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt

__all__ = ["sparse_block_dot", "sparse_block_gemv", "sparse_block_outer"]


def sparse_block_gemv(o: Any, W: Any, h: Any, inputIdx: Any, outputIdx: Any) -> Any:
    """Return ``o[b, j] + sum over i of h[b, i] W[inputIdx[b, i], outputIdx[b, j]]``.

    Parameters
    ----------
    o : tensor of shape (batch, chosen outputs, output size)
        What is added to.
    W : tensor of shape (inputs, outputs, input size, output size)
        The blocks.
    h : tensor of shape (batch, chosen inputs, input size)
        The chosen inputs.
    inputIdx : matrix of int, of shape (batch, chosen inputs)
        Which they are.
    outputIdx : matrix of int, of shape (batch, chosen outputs)
        Which outputs are computed.
    """
    o, W, h, inputs, outputs = map(
        pt.as_tensor_variable, (o, W, h, inputIdx, outputIdx)
    )
    blocks = W[inputs[:, :, None], outputs[:, None, :]]
    products = (h[:, :, None, :, None] * blocks).sum(axis=3)
    return o + products.sum(axis=1)


def sparse_block_outer(
    o: Any, x: Any, y: Any, xIdx: Any, yIdx: Any, alpha: Any = None
) -> Any:
    """Return `o` with ``alpha x[b, i] y[b, j]`` in block (xIdx[b, i], yIdx[b, j]) more.

    Parameters
    ----------
    o : tensor of shape (inputs, outputs, input size, output size)
        The blocks.
    x, y : tensors of shape (batch, chosen, size)
        Whose outer products are added.
    xIdx, yIdx : matrices of int, of shape (batch, chosen)
        To which blocks.
    alpha : scalar, optional
        1 unless given.
    """
    o, x, y, rows, columns = map(pt.as_tensor_variable, (o, x, y, xIdx, yIdx))
    outer = x[:, :, None, :, None] * y[:, None, :, None, :]
    outer = outer if alpha is None else alpha * outer
    return pt.inc_subtensor(o[rows[:, :, None], columns[:, None, :]], outer)


def sparse_block_dot(W: Any, h: Any, inputIdx: Any, b: Any, outputIdx: Any) -> Any:
    """Return the chosen blocks of ``h W + b``; arguments as `sparse_block_gemv`'s.

    Parameters
    ----------
    b : matrix of shape (outputs, output size)
        The biases.
    W, h, inputIdx, outputIdx
        See there. Without the batch, `h` and the indices have an axis less.
    """
    h, inputs, outputs = map(pt.as_tensor_variable, (h, inputIdx, outputIdx))
    one = h.ndim == inputs.ndim + 1 == outputs.ndim + 1 == 2
    if one:
        h, inputs, outputs = h[None], inputs[None], outputs[None]
    chosen = pt.as_tensor_variable(b)[outputs]
    found = sparse_block_gemv(chosen, W, h, inputs, outputs)
    return found[0] if one else found
