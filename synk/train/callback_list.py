"""The callbacks of a `Trainer.fit`: whom it asks, and what a file holds of them.

A file may be written in the midst of asking, as `Checkpoint` does it. Callbacks that
come after it in the list have not heard of the epoch then. The file says so, and where
training goes on they are asked first.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..callbacks import Callback
from ..user_frames import callers_level


class CallbackList:
    """The callbacks of a fit; `are_running` while there is one that asks them."""

    def __init__(self, callbacks: Sequence[Callable | Callback] = ()) -> None:
        # By what a file knows them: of one key, from the second on with its number.
        self._callbacks: dict[str, Any] = {}
        seen: Counter[str] = Counter()
        for callback in callbacks:
            if isinstance(callback, Callback):
                key = callback.state_key
            else:
                key = getattr(callback, "__qualname__", type(callback).__qualname__)
            seen[key] += 1
            self._callbacks[key if seen[key] == 1 else f"{key} #{seen[key]}"] = callback
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
                    ask = callback
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
            tell = getattr(callback, "state_dict", dict)
            one: dict[str, Any] = {"key": key, "state": tell()}
            if self._answers is not None:
                one["answer"] = self._answers.get(key)
            found.append(one)
        return found

    def go_on(self, trainer: Any, states: Sequence[Mapping[str, Any]]) -> bool:
        """Have the callbacks go on with what `states` has returned.

        Return whether training is to end with the epoch in which the file was written.
        """
        by_key = {str(of["key"]): of for of in states}
        left = [key for key in by_key if key not in self._callbacks]
        for key, callback in self._callbacks.items():
            if key in by_key:
                take = getattr(callback, "load_state_dict", None)
                if take is not None:
                    take(by_key[key]["state"])
                continue
            alike = [one for one in left if _class_of(one) == _class_of(key)]
            if alike and by_key[alike[0]]["state"]:
                warnings.warn(
                    f"the callback {key} begins anew: the file that the trainer goes on"
                    f" from has {', '.join(alike)}",
                    stacklevel=callers_level(),
                )
        if not any("answer" in of for of in states) or not trainer.history.epochs:
            return False
        # Those of which the file knows nothing have not been there in that epoch.
        known = {key: False for key in self._callbacks if key not in by_key}
        known |= {
            key: of["answer"] for key, of in by_key.items() if of["answer"] is not None
        }
        return self.after_epoch(trainer, trainer.history.epochs[-1], known)


def _class_of(key: str) -> str:
    return key.partition("(")[0].partition(" #")[0]


@contextlib.contextmanager
def progress_bar(
    is_shown: bool, total: int, unit: str = "epoch"
) -> Iterator[Callable[[Mapping[str, float]], object]]:
    """Give what shows an epoch's numbers, in a ``with`` block."""
    bars: Any = None  # tqdm, if it is installed
    if is_shown:
        with contextlib.suppress(ImportError):
            import tqdm

            bars = tqdm.tqdm
    if bars is None:
        yield lambda numbers: None
        return
    with bars(total=total, unit=unit) as bar:

        def show(numbers: Mapping[str, float]) -> None:
            shown = {k: v for k, v in numbers.items() if "loss" in k}
            bar.set_postfix(shown, refresh=False)
            bar.update()

        yield show
