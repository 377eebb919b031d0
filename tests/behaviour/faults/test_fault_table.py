"""The fault table: every row is survived, in time and with the right numbers."""

from __future__ import annotations

import pytest
from player import begin, play
from table import TABLE


@pytest.fixture(scope="module")
def work():
    return begin()


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_row(row, work):
    if reason := row.needs():
        pytest.skip(reason)
    for repeat in range(row.repeats):
        outcome = play(row, work, f"{row.name} {repeat}")
        assert outcome.verdict == "survived", outcome.detail
