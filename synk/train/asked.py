"""The callbacks of a `Trainer.fit`: whom it asks, and what a file holds of them.

A file may be written in the midst of asking, as `Checkpoint` does it. Callbacks that
come after it in the list have not heard of the epoch then. The file says so, and where
training goes on they are asked first.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..callbacks import Callback
from ..user_frames import callers_level
from .told import as_json, from_json


class Asked:
    """The callbacks of a fit.

    Parameters
    ----------
    callbacks : sequence of Callback or callable

    Attributes
    ----------
    are_running : bool
        Whether there is a fit that asks them.
    """

    def __init__(self, callbacks: Sequence[Callable | Callback] = ()) -> None:
        self._callbacks = list(callbacks)
        self._keys = list(_keys(map(_key, self._callbacks)))
        # Of the epoch whose numbers they are asked about, what those have answered
        # that were asked; None where nobody is being asked.
        self._answers: list[bool] | None = None
        self.are_running = False

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def before_epoch(self, trainer: Any, epoch: int) -> None:
        """Tell all of them that an epoch begins."""
        for callback in self._callbacks:
            if isinstance(callback, Callback):
                callback.before_epoch(trainer, epoch)

    def after_epoch(self, trainer: Any, numbers: dict[str, float]) -> bool:
        """Ask all of them, whoever wants to stop; return whether anybody does."""
        return self._ask(trainer, numbers, {})

    def _ask(
        self, trainer: Any, numbers: dict[str, float], known: Mapping[str, bool]
    ) -> bool:
        """Ask those whose answer is not known."""
        self._answers = answers = []
        try:
            for key, callback in zip(self._keys, self._callbacks, strict=True):
                answers.append(known.get(key, False))
                if key not in known:
                    answers[-1] = _asked(callback, trainer, numbers)
        finally:
            self._answers = None
        return any(answers)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Have it known that there is a fit that asks them."""
        self.are_running = True
        try:
            yield
        finally:
            self.are_running = False

    def states(self) -> list[dict[str, Any]]:
        """Return what a file is to say of them, see `states_told`."""
        found = []
        for i, callback in enumerate(self._callbacks):
            tell = getattr(callback, "state_dict", None)
            one = {"key": self._keys[i], "state": {} if tell is None else tell()}
            if self._answers is not None:
                # One that saves has done its part by that.
                one["answer"] = dict(enumerate(self._answers)).get(i)
            found.append(one)
        return found

    def go_on(self, trainer: Any, states: Sequence[Mapping[str, Any]]) -> bool:
        """Have the callbacks go on with what a file says of them.

        Parameters
        ----------
        trainer : Trainer
        states : sequence
            As `states` has returned them.

        Returns
        -------
        bool
            Whether training is to end with the epoch in which the file was written.
        """
        by_key = {str(of["key"]): of for of in states}
        for key, callback in zip(self._keys, self._callbacks, strict=True):
            take = getattr(callback, "load_state_dict", None)
            if take is not None and key in by_key:
                take(by_key[key]["state"])
        self._warn_of_others(by_key)
        are_left = any("answer" in of for of in states)
        if not are_left or not trainer.history.epochs:
            return False
        # Those of which the file knows nothing have not been there in that epoch.
        known = {key: False for key in self._keys if key not in by_key}
        known |= {
            k: of["answer"] for k, of in by_key.items() if of["answer"] is not None
        }
        return self._ask(trainer, trainer.history.epochs[-1], known)

    def _warn_of_others(self, by_key: Mapping[str, Any]) -> None:
        """Warn of a callback that begins anew, though the file has one of its class."""
        left = [key for key in by_key if key not in self._keys]
        for key in self._keys:
            alike = [one for one in left if _class_of(one) == _class_of(key)]
            if key not in by_key and alike and by_key[alike[0]]["state"]:
                warnings.warn(
                    f"the callback {key} begins anew: the file that the trainer goes on"
                    f" from has {', '.join(alike)}",
                    stacklevel=callers_level(),
                )


def states_told(
    states: Iterable[Mapping[str, Any]], arrays: dict[str, np.ndarray]
) -> list[dict[str, Any]]:
    """Return what callbacks say of themselves as JSON has it.

    Parameters
    ----------
    states : iterable of mapping
        As `Asked.states` returns them.
    arrays : dict of str to numpy.ndarray
        Those of the file; more are added.
    """
    found = []
    for i, one in enumerate(states):
        what = f"state_dict() of the callback {one['key']}"
        state = as_json(one["state"], arrays, f"callback {i}", what)
        found.append({**one, "state": state})
    return found


def states_of(told: Iterable[Mapping[str, Any]], arrays: Any) -> list[dict[str, Any]]:
    """Return the states of which `states_told` has told.

    Parameters
    ----------
    told : iterable of mapping
    arrays : mapping of str to numpy.ndarray
        Those of the file.
    """
    return [{**one, "state": from_json(one["state"], arrays)} for one in told]


def _asked(
    callback: Callable | Callback, trainer: Any, numbers: dict[str, float]
) -> bool:
    """Tell whether a callback wants training to end."""
    if isinstance(callback, Callback):
        return bool(callback.after_epoch(trainer, numbers))
    return bool(callback(trainer, numbers))


def _key(callback: Any) -> str:
    """Return by what a file knows a callback."""
    if isinstance(callback, Callback):
        return callback.state_key
    return str(getattr(callback, "__qualname__", type(callback).__qualname__))


def _keys(keys: Iterable[str]) -> Iterable[str]:
    """Return keys of which each is there once: from the second on with its number."""
    seen: Counter[str] = Counter()
    for key in keys:
        seen[key] += 1
        yield key if seen[key] == 1 else f"{key} #{seen[key]}"


def _class_of(key: str) -> str:
    return key.partition("(")[0].partition(" #")[0]
