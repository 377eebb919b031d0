"""Images for `resnet50.py`: made up, or from files that processes decode ahead.

Both kinds have the same interface: `classes`, and ``training(epoch, batch)`` and
``validation(batch)``, which yield images, uint8 of shape (batch, 3, size, size), and
labels, int32. What an epoch's batches hold follows from seed and epoch alone, so that
training which is resumed sees what it would have seen.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing.connection import wait
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
HELD_OUT = 10
"""Of every so many images of a class, one is kept for validation."""


class ImageError(ValueError):
    """A file that cannot be decoded; the message names it."""


def batches_of(order: np.ndarray, batch: int) -> list[np.ndarray]:
    """Cut row numbers into batches; the last may have fewer."""
    return [order[low : low + batch] for low in range(0, len(order), batch)]


class MadeUp:
    """Noise around a pattern for each class: what a network can learn, from no disk.

    Parameters
    ----------
    classes, size : int
        How many classes, and pixels along a side.
    n_training, n_validation : int
        How many images.
    seed : int
    """

    def __init__(
        self, classes: int, size: int, n_training: int, n_validation: int, seed: int
    ) -> None:
        self.classes, self.size, self.seed = classes, size, seed
        self.n_training, self.n_validation = n_training, n_validation
        random = np.random.default_rng(seed)
        self._patterns = random.integers(64, 192, (classes, 3, 4, 4))
        self._labels = random.integers(0, classes, n_training + n_validation, "int32")

    def training(self, epoch: int, batch: int) -> Iterator[tuple]:
        """Yield the batches of an epoch, shuffled."""
        shuffle = np.random.default_rng([self.seed, epoch])
        for rows in batches_of(shuffle.permutation(self.n_training), batch):
            yield self._images(rows)

    def validation(self, batch: int) -> Iterator[tuple]:
        """Yield the batches that are not trained on."""
        for rows in batches_of(np.arange(self.n_validation) + self.n_training, batch):
            yield self._images(rows)

    def close(self) -> None:
        """Do nothing: there are no processes."""

    def _images(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        labels = self._labels[rows]
        images = np.empty((len(rows), 3, self.size, self.size), np.uint8)
        places = np.arange(self.size) * 4 // self.size
        for image, row, label in zip(images, rows, labels, strict=True):
            noise = np.random.default_rng([self.seed, row]).integers(
                -64, 64, image.shape
            )
            image[:] = self._patterns[label][:, places[:, None], places] + noise
        return images, labels


class Folder:
    """A folder that has a folder of images for each class.

    Parameters
    ----------
    path : str or path-like
        Classes are numbered in the order of their folders' names. Of every ten images
        one is kept for validation.
    size : int
        Pixels along a side, of all images.
    seed : int
        Of shuffles and crops.
    processes : int
        How many decode.
    """

    def __init__(
        self, path: str | os.PathLike[str], size: int, seed: int, processes: int
    ) -> None:
        self.size, self.seed = size, seed
        folders = sorted(child for child in Path(path).iterdir() if child.is_dir())
        self.names = [folder.name for folder in folders]
        self.classes = len(folders)
        training: list[tuple[str, int]] = []
        validation: list[tuple[str, int]] = []
        for label, folder in enumerate(folders):
            files = sorted(
                str(file)
                for file in folder.rglob("*")
                if file.suffix.lower() in SUFFIXES
            )
            if len(files) < 2:
                raise ValueError(
                    f"{folder}: a class needs 2 images, found {len(files)}"
                )
            for i, file in enumerate(files):
                part = validation if i % HELD_OUT == 1 else training
                part.append((file, label))
        if not folders:
            raise ValueError(f"{path}: no folders, of which each would be a class")
        self._training, self._validation = training, validation
        self.n_training, self.n_validation = len(training), len(validation)
        self._loader = Loader(processes)

    def training(self, epoch: int, batch: int) -> Iterator[tuple]:
        """Yield the batches of an epoch: shuffled, randomly cropped and flipped."""
        shuffle = np.random.default_rng([self.seed, epoch])
        order = shuffle.permutation(self.n_training)
        jobs = (
            self._job(self._training, rows, (self.seed, epoch))
            for rows in batches_of(order, batch)
        )
        yield from self._loader.map(decode_batch, jobs)

    def validation(self, batch: int) -> Iterator[tuple]:
        """Yield the images that are not trained on, of which the centre is taken."""
        order = np.arange(self.n_validation)
        jobs = (
            self._job(self._validation, rows, ()) for rows in batches_of(order, batch)
        )
        yield from self._loader.map(decode_batch, jobs)

    def close(self) -> None:
        """End the processes that decode."""
        self._loader.close()

    def _job(self, files: list, rows: np.ndarray, seed: tuple) -> Job:
        return Job([(*files[row], int(row)) for row in rows], self.size, seed)


class Job(NamedTuple):
    """A batch to decode."""

    files: list[tuple[str, int, int]]
    """Path, label, and number of each, which goes into the seed of its crop."""
    size: int
    seed: tuple[int, ...]
    """Of the crops; ``()`` for validation, which has none."""


def decode_batch(job: Job) -> tuple[np.ndarray, np.ndarray]:
    """Return images and labels."""
    images = np.empty((len(job.files), 3, job.size, job.size), np.uint8)
    for image, (path, _, number) in zip(images, job.files, strict=True):
        random = np.random.default_rng([*job.seed, number]) if job.seed else None
        image[:] = decode(path, job.size, random)
    return images, np.array([label for _, label, _ in job.files], np.int32)


def decode(path: str, size: int, random: np.random.Generator | None) -> np.ndarray:
    """Return an image, uint8 of shape (3, size, size).

    Parameters
    ----------
    path : str
    size : int
    random : numpy.random.Generator, optional
        Takes a random part of the image (`random_part`), mirrored half of the time;
        without it, the central square, 7/8 of the shorter side long.

    Raises
    ------
    ImageError
        If that is not possible, whatever is wrong with the file.
    """
    try:
        with Image.open(path) as file:
            # A JPEG is decoded at half the size or less where that is enough.
            file.draft("RGB", (2 * size, 2 * size))
            image = file.convert("RGB")
    except Exception as error:  # Pillow's decoders raise almost anything
        raise ImageError(f"{path}: no image that can be read: {error}") from error
    width, height = image.size
    if random is None:
        side = min(width, height) * 7 / 8
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side)
    else:
        box = random_part(width, height, random)
    image = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    pixels = np.asarray(image).transpose(2, 0, 1)
    return pixels[..., ::-1] if random is not None and random.random() < 0.5 else pixels


def random_part(width: int, height: int, random: np.random.Generator) -> tuple:
    """Return left, top, right and bottom of a random part of an image.

    It has 8 to 100 percent of the area, and sides that are 3:4 to 4:3 (C. Szegedy et
    al. 2014, "Going deeper with convolutions", section 6), or less if too long.
    """
    area = width * height * random.uniform(0.08, 1)
    ratio = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)))
    w, h = min(np.sqrt(area * ratio), width), min(np.sqrt(area / ratio), height)
    left, top = random.uniform(0, width - w), random.uniform(0, height - h)
    return (left, top, min(left + w, width), min(top + h, height))


class Loader:
    """Processes that work ahead, by so many jobs and not more.

    Parameters
    ----------
    processes : int
    """

    def __init__(self, processes: int) -> None:
        self._ahead = processes + 2
        # A server forks them, not this process, which has threads and ranks by then.
        self._pool = ProcessPoolExecutor(
            processes,
            multiprocessing.get_context("forkserver"),
            initializer=_start,
            initargs=(usable_cores(),),
        )

    def map(self, function: Callable, jobs: Iterable) -> Iterator:
        """Yield what the function returns for each job, in their order."""
        pending: deque[Future] = deque()
        try:
            for job in jobs:
                with _interrupts_wait():
                    pending.append(self._pool.submit(function, job))
                if len(pending) == self._ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:  # an error, or whoever takes the results has stopped
            for future in pending:
                future.cancel()

    def close(self) -> None:
        """End the processes, when each has finished its job."""
        self._pool.shutdown(cancel_futures=True)


_cores = os.sched_getaffinity(0)


def usable_cores() -> set[int]:
    """Return the cores that this process had at first: `synk.fork` takes its share."""
    return _cores


@contextlib.contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Have Ctrl-C wait, in a ``with`` block, in which processes may be started.

    It reaches all processes of a terminal; the one that trains ends the others. They
    have it blocked from their start on, as the server has that forks them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(cores: set[int]) -> None:
    """Prepare a process that decodes."""
    os.sched_setaffinity(0, cores)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # if the server was there before
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)  # it was killed, and will ask for nothing more
