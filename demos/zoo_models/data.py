"""Rows to train on, in parts that fit into memory.

All kinds have the same interface: ``training(epoch)`` yields `parts` parts, and
``validation()`` some more, each a list of the arrays that a step takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import digits
import lstm
import numpy as np

from . import gans


class Images:
    """Images and labels, of a folder or made up; see ``images.py``.

    Parameters
    ----------
    source : Folder or MadeUp
        Of ``images.py``.
    batch : int
        Rows that are got at once.
    hold : int
        Rows of one part.
    """

    def __init__(self, source, batch: int, hold: int) -> None:
        self._source, self._batch = source, min(batch, hold)
        self._batches = max(1, hold // self._batch)
        self.classes, self.shape = source.classes, (3, source.size, source.size)
        self.rows, self.held_out = source.n_training, source.n_validation
        self.parts = -(-self.rows // (self._batch * self._batches))

    def training(self, epoch: int) -> Iterator[list[np.ndarray]]:
        """Yield the parts of an epoch."""
        yield from self._together(self._source.training(epoch, self._batch))

    def validation(self) -> Iterator[list[np.ndarray]]:
        """Yield the images that are not trained on."""
        yield from self._source.validation(self._batch)

    def close(self) -> None:
        """End the processes that decode, if there are any."""
        self._source.close()

    def _together(self, batches: Iterable) -> Iterator[list[np.ndarray]]:
        """Yield parts of several batches each."""
        waiting: list = []
        for batch in batches:
            waiting.append(batch)
            if len(waiting) == self._batches:
                yield _joined(waiting)
                waiting = []
        if waiting:
            yield _joined(waiting)


def _joined(batches: list) -> list[np.ndarray]:
    return [np.concatenate(arrays) for arrays in zip(*batches, strict=True)]


class Table:
    """Rows that are in memory, all of them in one part.

    Parameters
    ----------
    training, validation : numpy.ndarray
    """

    parts = 1

    def __init__(self, training: np.ndarray, validation: np.ndarray) -> None:
        self._training, self._validation = training, validation
        self.rows, self.held_out = len(training), len(validation)

    def training(self, epoch: int) -> Iterator[list[np.ndarray]]:
        """Yield the rows to train on."""
        yield [self._training]

    def validation(self) -> Iterator[list[np.ndarray]]:
        """Yield the rows that are not trained on."""
        yield [self._validation]

    def close(self) -> None:
        """Do nothing."""


class Digits(Table):
    """The digits of MNIST, or those that scikit-learn has where it can't be had.

    Parameters
    ----------
    size : int
        Pixels along a side, 28 or 8.
    rows : int, optional
        Use the first ones only.
    """

    def __init__(self, size: int, rows: int | None) -> None:
        found = digits.load(bundled=size == 8)
        pixels = (found.images * (255 // found.white)).astype("uint8")
        self.shape = pixels.shape[1:]
        training, validation = (pixels[part] for part in found.rows.values())
        if rows is not None:
            training, validation = training[:rows], validation[: max(1, rows // 8)]
        super().__init__(training, validation)


class Text(Table):
    """Python's reference, letter by letter; see ``lstm.py``.

    Parameters
    ----------
    length : int
        Letters of a row.
    rows : int, optional
        Use the beginning only.
    """

    def __init__(self, length: int, rows: int | None) -> None:
        # A tenth is held out, and the last letter of a row is the next one's first.
        letters = None if rows is None else length * max(10, -(-rows * 10 // 9)) + 1
        text = lstm.read(length, letters)
        super().__init__(*(text.table[part] for part in text.rows.values()))
        self.letters = len(text.alphabet)


class WithNoise:
    """Images without labels, and noise for as many, other noise in each epoch.

    Parameters
    ----------
    source : Images or Digits
    seed : int
    floatX : str
        The noise's dtype.
    """

    def __init__(self, source: Images | Digits, seed: int, floatX: str) -> None:
        self._source, self._seed, self._floatX = source, seed, floatX
        self.shape, self.parts = source.shape, source.parts
        self.rows, self.held_out = source.rows, source.held_out
        self.close = source.close

    def training(self, epoch: int) -> Iterator[list[np.ndarray]]:
        """Yield the parts of an epoch."""
        random = np.random.default_rng([self._seed, epoch])
        for x, *_ in self._source.training(epoch):
            yield [x, self.noise(random, len(x))]

    def validation(self) -> Iterator[list[np.ndarray]]:
        """Yield the images that are not trained on."""
        random = np.random.default_rng(self._seed)
        for x, *_ in self._source.validation():
            yield [x, self.noise(random, len(x))]

    def noise(self, random: np.random.Generator, rows: int) -> np.ndarray:
        """Return what so many images are made from, numbers from 0 to 1."""
        return random.random((rows, gans.NOISE)).astype(self._floatX)
