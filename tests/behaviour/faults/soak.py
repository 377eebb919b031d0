"""Play the fault table in random order, with random moments, for a given time.

::

    python tests/behaviour/faults/soak.py --minutes 10 --seed 1

Prints how many faults were survived, and how soon they were noticed and mended. The
exit status is 1 if one was not. A trial is repeated by its name and seed, which are
printed: ``--only "SIGKILL, idle" --trial 1-17``.
"""

from __future__ import annotations

import argparse
import collections
import gc
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[2] / "support"))

import numpy as np
from player import Outcome, Player
from table import TABLE
from trial import Row


class Tally:
    """What came of all trials so far."""

    def __init__(self) -> None:
        self.verdicts: collections.Counter[str] = collections.Counter()
        self.failures: list[str] = []
        self.seconds: dict[str, list[tuple[float, str]]]
        self.seconds = collections.defaultdict(list)

    def add(self, row: Row, outcome: Outcome) -> None:
        self.verdicts[outcome.verdict] += 1
        if outcome.verdict != "survived":
            self.failures.append(f"{outcome.verdict}: {outcome.detail}")
        measured = outcome.measured
        if measured.get("error") == "WorkerDied":
            self.seconds["detection"].append((measured["detected"], row.name))
        if "recovered" in measured:
            self.seconds["recovery"].append((measured["recovered"], row.name))
        if "gone" in measured:
            self.seconds["end of a dead master's ranks"].append(
                (measured["gone"], row.name)
            )

    @property
    def total(self) -> int:
        return self.verdicts.total()

    def lines(self) -> list[str]:
        count = self.verdicts
        said = [
            f"{count['survived']} of {self.total} faults survived:"
            f" {count['hang']} hangs, {count['leak']} leaks,"
            f" {count['wrong']} wrong results, {count['late']} late,"
            f" {count['unexpected']} other surprises"
        ]
        for what, values in self.seconds.items():
            median, late = np.percentile([seconds for seconds, _ in values], [50, 99])
            longest, row = max(values)
            said.append(
                f"{what}: median {1000 * median:.0f} ms, p99 {1000 * late:.0f} ms,"
                f" longest {1000 * longest:.0f} ms ({row}), of {len(values)}"
            )
        return said


def in_random_order(rows: Sequence[Row], rng: random.Random) -> Iterator[Row]:
    """Yield all rows for ever, each as often as the others."""
    while True:
        yield from rng.sample(rows, len(rows))


class Output:
    """What trials print is kept from the terminal, and shown of those that fail."""

    def __init__(self) -> None:
        self.terminal = os.fdopen(os.dup(1), "w", buffering=1)
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  for the life of the process
        for descriptor in (1, 2):
            os.dup2(self._file.fileno(), descriptor)

    def forget(self) -> None:
        self._file.seek(0)
        self._file.truncate()

    def tail(self) -> str:
        sys.stdout.flush()
        self._file.seek(0)
        return self._file.read().decode(errors="replace")[-4000:]


def main() -> int:
    """Play until the time is over, or so many faults were met."""
    options = _options()
    rows = [
        row for row in TABLE if re.search(options.only, row.name) and not row.needs()
    ]
    rng = random.Random(options.seed)
    output, tally = Output(), Tally()
    shown = output.terminal
    print(f"{len(rows)} of {len(TABLE)} rows can be played here", file=shown)
    player = Player(TABLE)
    gc.collect()
    gc.freeze()
    start = last = time.monotonic()
    for row in in_random_order(rows, rng):
        if time.monotonic() - start > 60 * options.minutes:
            break
        if tally.total == options.faults:
            break
        output.forget()
        outcome = player.play(row, options.trial or f"{options.seed}-{tally.total}")
        tally.add(row, outcome)
        if outcome.verdict != "survived":
            print(tally.failures[-1], output.tail(), sep="\n", file=shown)
        if time.monotonic() - last > 60:
            print(tally.lines()[0], file=shown)
            last = time.monotonic()
        time.sleep(options.pause)
    ended = player.close()
    print(*tally.lines(), sep="\n", file=shown)
    print("at the end:", ended.verdict, ended.detail, file=shown)
    return int(bool(tally.failures or ended.verdict != "survived"))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--faults", type=int, default=-1, help="stop after so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="rows, by a regular expression")
    parser.add_argument("--trial", default="", help="the seed of one trial, repeated")
    parser.add_argument("--pause", type=float, default=0, help="seconds between trials")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
