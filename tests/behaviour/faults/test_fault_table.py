"""The fault table: every row is survived, in time and with the right numbers.

Each row is played once. With SYNK_FAULTS=n in the environment those whose moment is
drawn are played n times; soak.py plays them for hours.
"""

from __future__ import annotations

import os

import pytest
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
