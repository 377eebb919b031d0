"""What `mnist.py` needs besides the network: images of digits, and a plot."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import socket
import warnings
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from sklearn.datasets import fetch_openml, load_digits

NETWORK_TIMEOUT = 10.0
"""Seconds that the server may take to connect, and between two pieces of data."""


class Digits(NamedTuple):
    """Images and labels, shuffled; training rows first, then the validation rows."""

    name: str
    images: np.ndarray  # (rows, pixels), uint8
    labels: np.ndarray  # (rows,), int32
    white: int  # the largest value of a pixel
    n_train: int


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
    return np.asarray(images).astype("uint8"), np.asarray(labels).astype("int32")


@contextlib.contextmanager
def _network_timeout(seconds: float):
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def plot(history: dict[str, list[float]], title: str, path: str) -> None:
    """Save curves of loss and accuracy over the epochs.

    Parameters
    ----------
    history : dict of list of float
        A value for each epoch of "train loss", "train accuracy", "validation loss" and
        "validation accuracy".
    title : str
    path : str
        The PNG to write.
    """
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(1, 2)
    for panel, what in zip(panels, ("loss", "accuracy"), strict=True):
        for rows, style in ("train", "--"), ("validation", "-"):
            values = history[f"{rows} {what}"]
            epochs = range(1, len(values) + 1)
            panel.plot(epochs, values, style, marker=".", label=rows)
        panel.set(xlabel="epoch", ylabel=what)
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.grid(alpha=0.3)
        panel.legend()
    panels[0].set_yscale("log")
    panels[0].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panels[0].yaxis.set_major_formatter("{x:g}")
    panels[0].yaxis.set_minor_formatter(NullFormatter())
    figure.savefig(path, format="png", dpi=120)
