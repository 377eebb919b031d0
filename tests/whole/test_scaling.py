"""The model of scaling that docs/performance.rst shows."""

from __future__ import annotations

import importlib.util
import shlex
import sys

import pytest
from places import DOCS, TESTS

PAGE = DOCS / "performance.rst"


@pytest.fixture(scope="module")
def scaling():
    """Import the program."""
    spec = importlib.util.spec_from_file_location(
        "scaling", TESTS / "whole/gpu/scaling.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_all_reduce_takes_as_long_as_the_steps_of_a_ring(scaling, monkeypatch):
    monkeypatch.setattr(scaling, "LATENCY", 0.0)
    monkeypatch.setattr(scaling, "MEMORY", float("inf"))
    # n - 1 steps to reduce and as many to gather, each of an n-th of the array.
    for gpus in (2, 3, 8):
        steps = [100e6 / gpus / 25e9 for _ in range(2 * (gpus - 1))]
        assert scaling.all_reduce_seconds(100e6, gpus, 25e9) == pytest.approx(
            sum(steps)
        )


def test_one_gpu_gains_nothing_and_long_steps_gain_all(scaling):
    assert scaling.speedup(0.1, 1e8, 1, 28e9) == 1
    assert scaling.speedup(1e6, 1e8, 8, 28e9) == pytest.approx(8)
    assert scaling.speedup(1e-9, 1e8, 8, 28e9) < 1e-3


def test_the_documents_show_what_the_program_prints(scaling, monkeypatch, capsys):
    command, *shown = [
        line.strip()
        for line in PAGE.read_text().split("$ python tests/whole/gpu/scaling.py")
    ][1].splitlines()[: 1 + 2 * 5]
    monkeypatch.setattr(sys, "argv", ["scaling.py", *shlex.split(command)])
    scaling.main()
    printed = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in shown] == [line.strip() for line in printed]
