"""`theano.tensor.nnet.neighbours`: patches of images as rows of a matrix."""

from __future__ import annotations

from typing import Any

from ...network import network_op

__all__ = ["images2neibs", "neibs2images"]


def images2neibs(*args: Any, **kwargs: Any) -> Any:
    """Return the patches of images, one in each row; ``synk.nn.images2neibs``."""
    return network_op("images2neibs", "images2neibs")(*args, **kwargs)


def neibs2images(*args: Any, **kwargs: Any) -> Any:
    """Return images of their patches; ``synk.nn.neibs2images``."""
    return network_op("neibs2images", "neibs2images")(*args, **kwargs)
