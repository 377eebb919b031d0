"""`theano.tensor.nnet.bn`: batch normalisation, by the Ops of `synk.nn`."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt

from ...network import network_op

__all__ = [
    "batch_normalization",
    "batch_normalization_test",
    "batch_normalization_train",
]


def batch_normalization(
    inputs: Any, gamma: Any, beta: Any, mean: Any, std: Any, mode: str = "low_mem"
) -> Any:
    """Return ``(inputs - mean) * (gamma / std) + beta``.

    Parameters
    ----------
    inputs, gamma, beta, mean, std : tensor
        What is normalised, and by what.
    mode : {"low_mem", "high_mem"}
        Had to do with Theano's memory; the value is the same.
    """
    if mode not in ("low_mem", "high_mem"):
        raise ValueError(f"mode must be 'low_mem' or 'high_mem', got {mode!r}")
    return (pt.as_tensor_variable(inputs) - mean) * (gamma / std) + beta


def batch_normalization_train(*args: Any, **kwargs: Any) -> Any:
    """Normalise by the batch's statistics; ``synk.nn.batch_normalization_train``."""
    name = "batch_normalization_train"
    return network_op(name, name)(*args, **kwargs)


def batch_normalization_test(*args: Any, **kwargs: Any) -> Any:
    """Normalise by given statistics; ``synk.nn.batch_normalization_test``."""
    name = "batch_normalization_test"
    return network_op(name, name)(*args, **kwargs)
