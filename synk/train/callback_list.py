"""The callbacks of a `Trainer.fit`: their calls, and their states for a file.

A callback may write the trainer's file, as `Checkpoint` does, before the callbacks that
follow it in the list were called for the epoch. The file says so, and training that
goes on from the file calls them first.
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
    """The callbacks of a fit; `are_running` during the fit."""

    def __init__(self, callbacks: Sequence[Callable | Callback] = ()) -> None:
        # By their keys in a file: if a key occurs again, a number is added to it.
        self._callbacks: dict[str, Any] = {}
        seen: Counter[str] = Counter()
        for callback in callbacks:
            if isinstance(callback, Callback):
                key = callback.state_key
            else:
                key = getattr(callback, "__qualname__", type(callback).__qualname__)
            seen[key] += 1
            self._callbacks[key if seen[key] == 1 else f"{key} #{seen[key]}"] = callback
        # During `after_epoch`: whether each callback called so far wants to stop.
        self._answers: dict[str, bool] | None = None
        self.are_running = False

    def before_epoch(self, trainer: Any, epoch: int) -> None:
        """Call every `Callback.before_epoch`."""
        for callback in self._callbacks.values():
            if isinstance(callback, Callback):
                callback.before_epoch(trainer, epoch)

    def after_epoch(
        self,
        trainer: Any,
        numbers: dict[str, float],
        known: Mapping[str, bool] | None = None,
    ) -> bool:
        """Call callbacks without an answer in `known`; return if one wants to stop."""
        known = known or {}
        self._answers = answers = {}
        try:
            for key, callback in self._callbacks.items():
                # Set before the call: a callback that saves the file counts as called.
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
        """Set `are_running` in a ``with`` block."""
        self.are_running = True
        try:
            yield
        finally:
            self.are_running = False

    def states(self) -> list[dict[str, Any]]:
        """Return for each callback an entry of the file: its key and its state.

        During `after_epoch` an entry has the answer, too; None if not yet called.
        """
        found = []
        for key, callback in self._callbacks.items():
            tell = getattr(callback, "state_dict", dict)
            one: dict[str, Any] = {"key": key, "state": tell()}
            if self._answers is not None:
                one["answer"] = self._answers.get(key)
            found.append(one)
        return found

    def restore(self, trainer: Any, states: Sequence[Mapping[str, Any]]) -> bool:
        """Restore the callbacks from `states`, entries of a file.

        If the file was saved during `after_epoch`, call those it had not called yet.
        Return whether training ends with that epoch.
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
        # Callbacks that are not in the file were not there in that epoch.
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
    """Yield a function that shows an epoch's numbers in a progress bar, or nowhere."""
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
