"""Records of training, those of Theano-MPI's recorder, in a JSON file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter

import numpy as np

MODES = ("calc", "sync", "comm", "wait")
RECORDS = ("train_info", "val_info", "epoch_time", "all_time", "lr")
FILE = "inforec.json"


class Recorder:
    """Records of costs, errors and times, which a model reports.

    Parameters
    ----------
    print_freq : int
        After how many batches of all workers there is a record.
    name : str
        The model's name.
    verbose : bool
        Whether records are printed, too.

    Attributes
    ----------
    train_info : list of [count, cost, error]
        Means over rank 0's batches since the last record, as given to `train_error`.
        `count` is the number of batches that all workers have trained, here and below.
    val_info : list of [count, cost, error, top-5 error]
        Means over the batches of all ranks that validate.
    epoch_time : list of [count, seconds]
    all_time : list of [count, total, calc, sync, comm, wait]
        Seconds of rank 0 since the last record: computing, waiting for other ranks,
        exchanging, waiting for data.
    lr : list of [count, learning rate]
    """

    def __init__(self, print_freq: int = 40, name: str = "", verbose: bool = False):
        self.print_freq, self.name, self.verbose = print_freq, name, verbose
        self.train_info: list[list[float]] = []
        self.val_info: list[list[float]] = []
        self.epoch_time: list[list[float]] = []
        self.all_time: list[list[float]] = []
        self.lr: list[list[float]] = []
        self._seconds = dict.fromkeys(MODES, 0.0)
        self._trained: list[tuple[float, ...]] = []
        self._validated: list[tuple[float, ...]] = []
        self._printed = 0
        self._start = self._epoch_start = perf_counter()

    # -- what a model calls

    def start(self) -> None:
        """Start the clock for `end`."""
        self._start = perf_counter()

    def end(self, mode: str) -> None:
        """Add the time since `start` to that of a mode.

        Parameters
        ----------
        mode : {"calc", "sync", "comm", "wait"}
        """
        self.add_time(mode, perf_counter() - self._start)

    def train_error(self, count: int, cost: float, error: float) -> None:
        """Add the cost and error of a training step, on a sub-batch.

        Parameters
        ----------
        count : int
        cost, error : float
            Their means over the sub-batch.
        """
        self._trained.append((float(cost), float(error)))

    def val_error(
        self, count: int, cost: float, error: float, error_top5: float = float("nan")
    ) -> None:
        """Add the cost and errors of a sub-batch of validation.

        Parameters
        ----------
        count : int
        cost, error, error_top5 : float
            Their means over the sub-batch.
        """
        self._validated.append((float(cost), float(error), float(error_top5)))

    # -- what the driver calls

    def add_time(self, mode: str, seconds: float) -> None:
        """Add to the time of a mode.

        Parameters
        ----------
        mode : {"calc", "sync", "comm", "wait"}
        seconds : float
        """
        if mode not in self._seconds:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        self._seconds[mode] += seconds

    def print_train_info(self, count: int, is_last: bool = False) -> None:
        """Make a record of the steps, each time `print_freq` more batches are trained.

        Parameters
        ----------
        count : int
            The number of batches that all workers have trained.
        is_last : bool
            Whether to make a record anyway, as at the end of an epoch.
        """
        is_due = count // self.print_freq != self._printed
        if not is_due and not (is_last and self._trained):
            return
        self._printed = count // self.print_freq
        times = list(self._seconds.values())
        self._seconds = dict.fromkeys(MODES, 0.0)
        self.all_time.append([count, sum(times), *times])
        if not self._trained:  # other ranks' batches
            return
        cost, error = _means(self._trained)
        self._trained = []
        self.train_info.append([count, cost, error])
        if self.verbose:
            spent = ", ".join(f"{m} {t:.3f}" for m, t in zip(MODES, times, strict=True))
            print(f"{count} {cost:.4f} {error:.4f}", flush=True)
            print(f"  {sum(times):.3f} s ({spent})", flush=True)

    def take_val_info(self) -> list[tuple[float, ...]]:
        """Return and drop the values given to `val_error`: cost, error, top-5 error."""
        taken, self._validated = self._validated, []
        return taken

    def print_val_info(
        self, count: int, found: Iterable[tuple[float, ...]]
    ) -> list[float] | None:
        """Make a record of a validation.

        Parameters
        ----------
        count : int
        found : iterable of (cost, error, error_top5)
            The results of `take_val_info` on all ranks.

        Returns
        -------
        list or None
            [count, cost, error, top-5 error]; None if nothing was validated.
        """
        rows = list(found)
        if not rows:
            return None
        self.val_info.append([count, *_means(rows)])
        if self.verbose:
            cost, error, top5 = self.val_info[-1][1:]
            print(f"validation cost: {cost:.4f}", flush=True)
            print(f"validation error: {error:.4f}, top 5: {top5:.4f}", flush=True)
        return self.val_info[-1]

    def start_epoch(self) -> None:
        """Start the clock for `end_epoch`."""
        self._epoch_start = perf_counter()

    def end_epoch(self, count: int) -> None:
        """Make a record of an epoch's time.

        Parameters
        ----------
        count : int
        """
        self.epoch_time.append([count, perf_counter() - self._epoch_start])

    # -- files

    def save(
        self, count: int, lr: float, path: str | os.PathLike[str] = "./inforec/"
    ) -> None:
        """Write all records to ``inforec.json``, with the present learning rate.

        Parameters
        ----------
        count : int
        lr : float
        path : str or path-like
            A folder, which is made if it does not exist. The file is a JSON object,
            with the names of the attributes as keys.
        """
        self.lr.append([count, float(lr)])
        file = Path(path) / FILE
        file.parent.mkdir(parents=True, exist_ok=True)
        written = file.with_suffix(".new")
        written.write_text(json.dumps({name: getattr(self, name) for name in RECORDS}))
        written.replace(file)

    def load(self, path: str | os.PathLike[str] = "./inforec/") -> None:
        """Read the records that `save` has written, in place of the present ones.

        Parameters
        ----------
        path : str or path-like
            The folder.
        """
        records = json.loads((Path(path) / FILE).read_text())
        for name in RECORDS:
            setattr(self, name, records[name])


def _means(rows: list[tuple[float, ...]]) -> list[float]:
    return [float(mean) for mean in np.mean(rows, axis=0)]
