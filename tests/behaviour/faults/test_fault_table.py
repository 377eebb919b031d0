"""The fault table: every row is survived, in time and with the right numbers.

Each row is played once; with SYNK_FAULTS=n in the environment those whose moment is
drawn n times. soak.py plays them for hours.
"""

import os
import re
from pathlib import Path

import pytest
from children import run_python
from player import Player
from table import TABLE

TIMES = int(os.environ.get("SYNK_FAULTS", "1"))


@pytest.fixture(scope="module")
def player():
    player = Player(TABLE)
    yield player
    ended = player.close()
    assert ended.verdict == "survived", ended.detail


@pytest.fixture(autouse=True)
def world():
    """Let a master live from one test to the next: it looks at what is left itself."""


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_row(row, player):
    if reason := row.needs():
        pytest.skip(reason)
    for repeat in range(TIMES if row.varies else 1):
        # A machine that does other things may be late once, or twice.
        for _ in range(3):
            outcome = player.play(row, f"{row.name} {repeat}")
            if outcome.verdict != "late":
                break
        assert outcome.verdict == "survived", outcome.detail


def test_soak_plays_rows_and_counts_what_is_survived():
    soak = Path(__file__).with_name("soak.py")
    done = run_python(soak, "--faults", 2, "--only", "SIG(KILL|TERM), idle")
    assert "2 of 2 faults survived: 0 hangs, 0 leaks, 0 wrong results" in done.stdout
    assert re.search(r"detection: median \d+ ms.*recovery: median", done.stdout, re.S)
