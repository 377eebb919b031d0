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

from ..callbacks import Callback
from ..user_frames import callers_level


class CallbackList:
    """The callbacks of a fit; `are_running` while there is one that asks them."""

    def __init__(self, callbacks: Sequence[Callable | Callback] = ()) -> None:
        keys = _told_apart(map(_key, callbacks))
        self._callbacks = dict(zip(keys, callbacks, strict=True))
        # Of the epoch whose numbers they are asked about, what those have answered
        # that were asked; None where nobody is being asked.
        self._answers: dict[str, bool] | None = None
        self.are_running = False

    def before_epoch(self, trainer: Any, epoch: int) -> None:
        """Tell all of them that an epoch begins."""
        for callback in self._callbacks.values():
            if isinstance(callback, Callback):
                callback.before_epoch(trainer, epoch)

    def after_epoch(
        self,
        trainer: Any,
        numbers: dict[str, float],
        known: Mapping[str, bool] | None = None,
    ) -> bool:
        """Ask all whose answer is not known; return whether anybody wants to stop."""
        known = known or {}
        self._answers = answers = {}
        try:
            for key, callback in self._callbacks.items():
                # One that saves meanwhile has done its part by that.
                answers[key] = known.get(key, False)
                if key not in known:
                    ask: Any = callback
                    if isinstance(callback, Callback):
                        ask = callback.after_epoch
                    answers[key] = bool(ask(trainer, numbers))
        finally:
            self._answers = None
        return any(answers.values())

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Have it known that there is a fit that asks them."""
        self.are_running = True
        try:
            yield
        finally:
            self.are_running = False

    def states(self) -> list[dict[str, Any]]:
        """Return what a file is to say of them: of each its key and its state.

        And, in the midst of asking, its answer: None of one that was not asked yet.
        """
        found = []
        for key, callback in self._callbacks.items():
            tell = getattr(callback, "state_dict", None)
            one = {"key": key, "state": {} if tell is None else tell()}
            if self._answers is not None:
                one["answer"] = self._answers.get(key)
            found.append(one)
        return found

    def go_on(self, trainer: Any, states: Sequence[Mapping[str, Any]]) -> bool:
        """Have the callbacks go on with what `states` has returned.

        Returns
        -------
        bool
            Whether training is to end with the epoch in which the file was written.
        """
        by_key = {str(of["key"]): of for of in states}
        for key, callback in self._callbacks.items():
            take = getattr(callback, "load_state_dict", None)
            if take is not None and key in by_key:
                take(by_key[key]["state"])
        self._warn_of_others(by_key)
        if not any("answer" in of for of in states) or not trainer.history.epochs:
            return False
        # Those of which the file knows nothing have not been there in that epoch.
        known = {key: False for key in self._callbacks if key not in by_key}
        known |= {
            key: of["answer"] for key, of in by_key.items() if of["answer"] is not None
        }
        return self.after_epoch(trainer, trainer.history.epochs[-1], known)

    def _warn_of_others(self, by_key: Mapping[str, Any]) -> None:
        """Warn of a callback that begins anew, though the file has one of its class."""
        left = [key for key in by_key if key not in self._callbacks]
        for key in self._callbacks:
            alike = [one for one in left if _class_of(one) == _class_of(key)]
            if key not in by_key and alike and by_key[alike[0]]["state"]:
                warnings.warn(
                    f"the callback {key} begins anew: the file that the trainer goes on"
                    f" from has {', '.join(alike)}",
                    stacklevel=callers_level(),
                )


def _key(callback: Any) -> str:
    """Return by what a file knows a callback."""
    if isinstance(callback, Callback):
        return callback.state_key
    return str(getattr(callback, "__qualname__", type(callback).__qualname__))


def _told_apart(keys: Iterable[str]) -> Iterator[str]:
    """Yield keys of which each is there once: from the second on with its number."""
    seen: Counter[str] = Counter()
    for key in keys:
        seen[key] += 1
        yield key if seen[key] == 1 else f"{key} #{seen[key]}"


def _class_of(key: str) -> str:
    return key.partition("(")[0].partition(" #")[0]


@contextlib.contextmanager
def progress_bar(
    is_shown: bool, total: int, unit: str = "epoch"
) -> Iterator[Callable[[Mapping[str, float]], object]]:
    """Give what shows an epoch's numbers, in a ``with`` block."""
    if not is_shown:
        yield lambda numbers: None
        return
    try:
        from tqdm import tqdm
    except ImportError:
        yield lambda numbers: None
        return
    with tqdm(total=total, unit=unit) as bar:

        def show(numbers: Mapping[str, float]) -> None:
            shown = {k: v for k, v in numbers.items() if "loss" in k}
            bar.set_postfix(shown, refresh=False)
            bar.update()

        yield show
