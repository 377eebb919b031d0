"""What the tests may take: what is printed of it, and when a run fails."""

from __future__ import annotations

from collections import Counter

import budget
import pytest

SECONDS = Counter(
    {
        "tests/behaviour/test_a.py": 30.0,
        "tests/whole/nodes/test_b.py": 60.0,
        "tests/parts/test_c.py": 0.5,
        "synk/ops.py": 0.25,
    }
)


def test_seconds_are_printed_by_floor_and_by_file():
    lines = [line.split(maxsplit=1) for line in budget.lines(SECONDS)]
    assert lines == [
        ["60.0", "tests/whole"],
        ["30.0", "tests/behaviour"],
        ["0.5", "tests/parts"],
        ["0.2", "doctests and others"],
        [],
        ["60.0", "tests/whole/nodes/test_b.py"],
        ["30.0", "tests/behaviour/test_a.py"],
        ["0.8", "2 other files"],
        ["90.8", "all, of all workers"],
    ]


@pytest.mark.parametrize(
    ("share", "slow", "fails"),
    [(1.2, 0.9, False), (1.3, 0.9, True), (1.3, 1.1, False)],
)
def test_a_run_fails_that_takes_a_quarter_more_on_a_machine_that_is_not_slow(
    share, slow, fails
):
    found, said = budget.verdict(share * budget.SECONDS, slow)
    assert found is fails
    assert ("take away" in said) is fails


def test_the_tasks_take_some_time():
    for task in budget.TASKS.values():
        assert 0 < task() < 60
