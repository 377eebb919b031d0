"""`tests/bench/modes.py`: a process in a mode answers, and tables have its figures."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from bench import modes


def served(mode: str, ranks: int, median: float) -> SimpleNamespace:
    return SimpleNamespace(
        mode=mode, ranks=ranks, median=median, cold=[9.0, 8.0], first=[3.0, 2.0]
    )


def test_tables_have_cpu_times_medians_and_multiples_of_the_fastest():
    found = [
        served("JAX", 1, 0.002),
        served("JAX", 2, 0.001),
        served("CVM", 1, 0.0105),
        served("CVM", 2, 2.0),
    ]
    lines = modes.rst({"A step": found}, 5).splitlines()
    assert "Medians of 5 interleaved rounds" in " ".join(lines)
    rows = [line.split("  ") for line in lines if line.startswith("``")]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells == [
        ["``JAX``", "8.0 s", "2.0 s", "2.00 ms (2.00)", "1.00 ms (1.00)"],
        ["``CVM``", "8.0 s", "2.0 s", "10.5 ms (10.5)", "2.00 s (2000)"],
    ]


def test_a_mode_answers_with_its_first_call_and_the_time_of_others(tmp_path):
    one = modes.Served("likelihood", "FAST_COMPILE", 1, 20, str(tmp_path))
    try:
        assert all(seconds > 0 for seconds in one.first)
        assert one.value > 0
        assert 0 < one.calls(2) < 60
    finally:
        one.end()


def test_a_process_that_ends_unasked_is_an_error(tmp_path):
    with pytest.raises(RuntimeError, match="NO_MODE on 1 ranks ended unasked"):
        modes.Served("likelihood", "NO_MODE", 1, 20, str(tmp_path))
