"""Images of digits for `mnist.py`: the full MNIST, or those that scikit-learn has."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import math
import socket
import warnings
from typing import NamedTuple

import numpy as np
from sklearn.datasets import fetch_openml, load_digits

NETWORK_TIMEOUT = 10.0
"""Seconds that the server may take to connect, and between two pieces of data."""


class Digits(NamedTuple):
    """Images and labels, shuffled; training rows first, then the validation rows."""

    name: str
    images: np.ndarray  # (rows, 1, height, width), uint8
    labels: np.ndarray  # (rows,), int32
    white: int  # the largest value of a pixel
    n_train: int

    @property
    def rows(self) -> dict[str, slice]:
        """Where each part of the rows is."""
        return {
            "train": slice(self.n_train),
            "validation": slice(self.n_train, len(self.images)),
        }


def load(bundled: bool = False) -> Digits:
    """Return the full MNIST, or scikit-learn's own small images where it can't be had.

    Parameters
    ----------
    bundled : bool
        If True, don't ask the network.

    Returns
    -------
    Digits
    """
    if not bundled:
        try:
            return load_mnist()
        except (OSError, http.client.HTTPException, ValueError) as error:
            # No network, a server that fails, or something else than data from it.
            print(f"cannot get MNIST from openml.org ({type(error).__name__}: {error})")
    return load_bundled()


def load_mnist() -> Digits:
    """Fetch the full MNIST; scikit-learn keeps it in its folder for the next time.

    Raises
    ------
    OSError, http.client.HTTPException, ValueError
        If the network or the server doesn't let us.
    """
    with _network_timeout(NETWORK_TIMEOUT), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a second attempt: the error says it all
        images, labels = fetch_openml(
            "mnist_784",
            version=1,
            as_frame=False,
            return_X_y=True,
            n_retries=1,
            delay=0.1,
            **_parser(),
        )
    # Its own order has the 10,000 test images last, which were written by other people.
    n_train = len(images) * 6 // 7
    return Digits("MNIST, 28x28", *_as_numbers(images, labels), 255, n_train)


def _parser() -> dict:
    """Tell scikit-learn how to read what it gets."""
    if importlib.util.find_spec("pandas"):
        return {"parser": "pandas", "read_csv_kwargs": {"dtype": "uint8"}}
    return {"parser": "liac-arff"}  # takes seven times as long


def load_bundled() -> Digits:
    """Return the 1,797 images of 8x8 pixels that come with scikit-learn."""
    images, labels = load_digits(return_X_y=True)
    # Always the same shuffle: the last rows alone were written by few people.
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = _as_numbers(images[order], labels[order])
    return Digits("scikit-learn's bundled digits, 8x8", images, labels, 16, 1437)


def _as_numbers(images, labels) -> tuple[np.ndarray, np.ndarray]:
    """Bring both into small types; labels may come as text, and pixels as floats."""
    side = math.isqrt(np.shape(images)[1])
    images = np.reshape(images, (-1, 1, side, side)).astype("uint8")
    return images, np.asarray(labels).astype("int32")


@contextlib.contextmanager
def _network_timeout(seconds: float):
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
