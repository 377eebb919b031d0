"""Play the fault table in random order, with random moments, for a given time.

::

    python tests/behaviour/faults/soak.py --minutes 10 --seed 1

Prints how many faults were survived, and how soon they were noticed and mended. The
exit status is 1 if one was not. A trial is repeated by its name and seed, which are
printed: ``--only "SIGKILL, idle" --trial 1-17``.
"""

import argparse
import collections
import gc
import os
import random
import re
import sys
import tempfile
import time
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
        self._seconds: dict[str, list[tuple[float, str]]]
        self._seconds = collections.defaultdict(list)

    def add(self, row: Row, outcome: Outcome) -> None:
        self.verdicts[outcome.verdict] += 1
        measured = outcome.measured
        if measured.get("error") == "WorkerDied":
            self._seconds["detection"].append((measured["detected"], row.name))
        for key, what in {
            "recovered": "recovery",
            "gone": "end of a dead master's ranks",
        }.items():
            if key in measured:
                self._seconds[what].append((measured[key], row.name))

    def lines(self) -> list[str]:
        count = self.verdicts
        said = [
            f"{count['survived']} of {count.total()} faults survived:"
            f" {count['hang']} hangs, {count['leak']} leaks,"
            f" {count['wrong']} wrong results, {count['late']} late,"
            f" {count['unexpected']} other surprises"
        ]
        for what, values in self._seconds.items():
            median, late = np.percentile([seconds for seconds, _ in values], [50, 99])
            longest, row = max(values)
            said.append(
                f"{what}: median {1000 * median:.0f} ms, p99 {1000 * late:.0f} ms,"
                f" longest {1000 * longest:.0f} ms ({row}), of {len(values)}"
            )
        return said


def main() -> int:
    """Play until the time is over, or so many faults were met."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--faults", type=int, default=-1, help="stop after so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="rows, by a regular expression")
    parser.add_argument("--trial", default="", help="the seed of one trial, repeated")
    options = parser.parse_args()
    rows = [
        row for row in TABLE if re.search(options.only, row.name) and not row.needs()
    ]
    shown = os.fdopen(os.dup(1), "w", buffering=1)
    print(f"{len(rows)} of {len(TABLE)} rows can be played here", file=shown)
    rng, tally, player = random.Random(options.seed), Tally(), Player(TABLE)
    gc.collect()
    gc.freeze()
    end = time.monotonic() + 60 * options.minutes
    waiting: list[Row] = []
    with tempfile.TemporaryFile() as output:  # what trials print, shown if one fails
        for descriptor in (1, 2):
            os.dup2(output.fileno(), descriptor)
        while time.monotonic() < end and tally.verdicts.total() != options.faults:
            # In random order, each as often as the others.
            waiting = waiting or rng.sample(rows, len(rows))
            row, number = waiting.pop(), tally.verdicts.total()
            output.seek(0)
            output.truncate()
            outcome = player.play(row, options.trial or f"{options.seed}-{number}")
            tally.add(row, outcome)
            if outcome.verdict != "survived":
                sys.stdout.flush()
                output.seek(0)
                printed = output.read().decode(errors="replace")[-4000:]
                print(f"{outcome.verdict}: {outcome.detail}", printed, file=shown)
            if number % 100 == 99:
                print(tally.lines()[0], file=shown)
    ended = player.close()
    print(*tally.lines(), sep="\n", file=shown)
    print("at the end:", ended.verdict, ended.detail, file=shown)
    return int({*tally.verdicts, ended.verdict} != {"survived"})


if __name__ == "__main__":
    sys.exit(main())
