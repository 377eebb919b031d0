"""Whoever makes a call, its numbers are the serial ones: with no mode named, and in C.

Functions that name no mode divide whole numbers, or have an Op of Python's in them: JAX
is not tried for these, and the process of the tests is to fork ranks afterwards.
"""

import functools
import json
import os
import re
import runpy
import sys
from collections.abc import Iterator

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from processes import Act

import synk

X, Y = pt.dmatrix("x"), pt.dvector("y")
VALUES = np.arange(24.0).reshape(8, 3) % 5, np.arange(8.0)

CORES = os.sched_getaffinity(0)
SEEN: dict = {}


def watch() -> None:
    """Note the cores of rank 0, and raise there what it is told."""
    SEEN["cores"] = os.sched_getaffinity(0)
    if SEEN.get("raises"):
        raise SEEN["raises"]("as it was told")


WATCHED = Act(0, watch)


@pytest.fixture
def auto(monkeypatch):
    """Let engines be chosen, as in a script that says nothing."""
    monkeypatch.setenv("SYNK_ENGINE", "auto")
    SEEN.clear()


class Training:
    """Steps of least squares, beside the same in numpy."""

    def __init__(self, mode: str | None, is_watched: bool) -> None:
        self.w = pytensor.shared(np.zeros(3), "w")
        self.calls = pytensor.shared(np.int64(0), "calls")
        loss = ((X @ self.w - Y) ** 2).mean()
        change = WATCHED(loss) - loss if is_watched else 0.0 * (self.calls // 2)
        self.step = synk.function(
            [X, Y],
            [loss, (X @ self.w) * 2],
            updates=[
                (self.w, self.w - 0.01 * pytensor.grad(loss, self.w) + change),
                (self.calls, self.calls + 1),
            ],
            mode=mode,
        )
        self.begin()

    def begin(self) -> None:
        """Go back to the first step."""
        self.w.set_value(np.zeros(3))
        self.calls.set_value(0)
        self.right, self.made = np.zeros(3), 0

    def expected(self, values=VALUES) -> tuple[float, np.ndarray]:
        """Make the next step in numpy; return what the function is to return."""
        rows, targets = map(np.array, values)
        fit = rows @ self.right
        self.right = self.right - 0.02 * rows.T @ (fit - targets) / len(rows)
        self.made += 1
        return ((fit - targets) ** 2).mean(), fit * 2

    def check_call(self, values=VALUES, **options) -> None:
        found, expected = self.step(*values, **options), self.expected(values)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)

    def check_variables(self) -> None:
        np.testing.assert_allclose(self.w.get_value(), self.right, rtol=1e-10)
        assert self.calls.get_value() == self.made
        for rank in range(synk.size()):
            w, calls = synk.get_value(rank, [self.w, self.calls])
            np.testing.assert_allclose(w, self.right, rtol=1e-10)
            assert calls == self.made


@functools.cache
def made(mode: str | None, is_watched: bool) -> Training:
    return Training(mode, is_watched)


def training(mode: str | None = None, is_watched: bool = False) -> Training:
    """Return the steps of all these tests, compiled once, from the first one on."""
    found = made(mode, is_watched)
    found.begin()
    return found


# -- every kind of call


@pytest.mark.parametrize(("mode", "n"), [(None, 1), (None, 3), ("CVM", 2)])
def test_calls_are_the_serial_ones_and_updates_are_made_once(auto, mode, n):
    steps = training(mode)
    with synk.session(n):
        check_all_kinds_of_calls(steps)
        if mode is None:
            synk.tune(steps.step, *VALUES)
            check_all_kinds_of_calls(steps)


def check_all_kinds_of_calls(steps: Training) -> None:
    for _ in range(6):
        steps.check_call()
    steps.check_call(num_slices=2)
    steps.check_call(check="serial")
    steps.check_call([part[:5] for part in VALUES])
    steps.check_call(list(map(synk.data, VALUES)))
    loss, _ = steps.expected()
    assert steps.step(*VALUES, output_subset=[0])[0] == pytest.approx(loss)
    batches = [slice(0, 4), slice(4, 8), slice(2, 6)] * 4
    (losses,) = steps.step.run(batches, *VALUES, output_subset=[0])
    for loss, batch in zip(losses, batches, strict=True):
        right, _ = steps.expected([part[batch] for part in VALUES])
        assert loss == pytest.approx(right)
    steps.w.set_value(np.full(3, 0.5))
    steps.right = np.full(3, 0.5)
    steps.check_call()
    steps.check_variables()


# -- tuning, and what a script says


def test_tuning_changes_nothing_and_explain_names_the_plans(auto, two_ranks, capsys):
    steps = training()
    table = synk.tune(steps.step, *VALUES)
    steps.check_variables()
    assert all(row.milliseconds > 0 for row in table)
    (best,) = [row.name for row in table if row.is_best]
    assert f"{best}: " in capsys.readouterr().out
    told = steps.step.explain()
    assert f"plan        {best}: as it was measured by synk.tune" in str(told)
    kept = [row["name"] for row in told.to_dict()["plans"]]
    assert kept == [row.name for row in table]
    assert {"numba", "numba, rank 0 alone"} <= set(kept)
    with pytest.raises(TypeError):
        synk.tune(steps.step, VALUES[0])
    steps.check_call()
    steps.check_variables()


def test_a_record_decides_for_the_graph_and_about_as_many_rows(
    auto, two_ranks, tmp_path, monkeypatch, capsys
):
    records = tmp_path / "plans.json"
    monkeypatch.setenv("SYNK_PLANS", str(records))
    # An Op that is told apart by an address is in no graph of an earlier run.
    first, second, third, fourth, fifth = (
        synk.function([Y], 3 * WATCHED(Y.sum()), name="three") for _ in range(5)
    )

    def command(*words: str) -> str:
        """Return what ``python -m synk tune`` prints."""
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["synk", "tune", *words])
        with pytest.raises(SystemExit) as end:
            runpy.run_module("synk", run_name="__main__")
        assert not end.value.code
        return capsys.readouterr().out

    def plan_of(function, times=1) -> str:
        assert function(np.tile(VALUES[1], times)) == times * 28 * 3
        return function.explain().to_dict()["plan"]

    def tuned() -> str:
        (best,) = [row.name for row in synk.tune(first, VALUES[1]) if row.is_best]
        return f"{best}: as it was measured by synk.tune"

    assert command() == "there are no records of synk.tune\n"
    measured = tuned()
    assert plan_of(second) == measured
    assert plan_of(second, 50) != measured  # of so many rows more nothing is known
    assert re.search(r"'three', about 12 rows, 2 ranks.*\n.*numba.*ms", command())
    # Where it was made by other versions, or is no record.
    found = json.loads(records.read_text())
    (entry,) = found.values()
    entry["made_by"]["numpy"] = "0.9"
    records.write_text(json.dumps(found))
    with pytest.warns(UserWarning, match=r"left out: it was made with numpy 0\.9, and"):
        assert "measured" not in plan_of(third)
    assert command("--clear") == "1 record deleted\n"
    assert not records.exists()
    records.write_text("no JSON")
    assert "measured" not in plan_of(fourth)
    # Otherwise records lie beside what PyTensor has compiled.
    monkeypatch.delenv("SYNK_PLANS")
    measured = tuned()
    assert plan_of(fifth) == measured
    assert records.read_text() == "no JSON"


def test_there_is_nothing_to_tune_where_the_mode_is_named_or_numbers_drawn(
    auto, two_ranks
):
    stream = pytensor.shared(np.random.default_rng(0))
    after, drawn = pt.random.normal(rng=stream, size=Y.shape).owner.outputs
    named = synk.function([Y], Y.sum(), mode="FAST_COMPILE")
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        by_config = synk.function([Y], Y.sum())
        assert synk.tune(by_config, VALUES[1]) == []
    assert synk.tune(named, VALUES[1]) == []
    draws = synk.function([Y], (Y + drawn).sum(), updates=[(stream, after)])
    before = stream.get_value()
    assert synk.tune(draws, VALUES[1]) == []
    assert stream.get_value().bit_generator.state == before.bit_generator.state


def test_the_environment_names_an_engine_for_all_that_name_none(auto, monkeypatch):
    for said, name in {
        "numba": "numba, one block: by SYNK_ENGINE",
        "default": "default mode (numba)",
    }.items():
        monkeypatch.setenv("SYNK_ENGINE", said)
        f = synk.function([Y], (Y * 2).sum())
        with synk.session(1):
            assert f(VALUES[1]) == 56
            plan = f.explain().to_dict()["plan"]
        assert plan == name
    monkeypatch.setenv("SYNK_ENGINE", "Fortran")
    refused = "SYNK_ENGINE is 'Fortran'; it can be one"
    with synk.session(1), pytest.raises(synk.SynkError, match=refused):
        f(VALUES[1])


# -- rank 0 alone


@pytest.fixture
def alone(auto) -> Iterator[Training]:
    """Return steps that rank 0 makes alone: of eight rows that is faster by far."""
    steps = training(is_watched=True)
    with synk.session(2):
        for _ in range(10):
            table = synk.tune(steps.step, *VALUES)
            if any(row.is_best and row.name.endswith("alone") for row in table):
                break
        else:
            pytest.fail(f"to launch ranks for eight rows was faster: {table}")
        yield steps


def calls_alone(function) -> int:
    found = function.explain().to_dict()["calls_alone"]
    return found["counted"] + found["left_out"]


def test_rank_0_alone_has_all_cores_and_the_others_get_what_it_updates(alone):
    total = synk.function([X], (X @ alone.w).sum(), mode="FAST_COMPILE")
    own, before = os.sched_getaffinity(0), calls_alone(alone.step)
    for k in range(4):
        alone.check_call()
        assert SEEN["cores"] == CORES
        if k % 2:
            right = (VALUES[0] @ alone.right).sum()
            np.testing.assert_allclose(total(VALUES[0]), right, rtol=1e-10)
            assert os.sched_getaffinity(0) == own
            alone.check_variables()
    assert calls_alone(alone.step) - before == 4
    loss, rows = alone.step(*VALUES)
    alone.expected()
    loss[...] = rows[...] = -1  # they are the caller's
    alone.check_call()
    synk.set_value(1, alone.w, np.zeros(3))
    with pytest.raises(synk.SplitError, match="own"):
        alone.step(*VALUES)
    synk.broadcast(alone.w)
    alone.check_call()
    alone.check_variables()
    # What fails changes nothing.
    data = list(map(synk.data, VALUES))
    for values in (VALUES, data, data):
        for error in (IndexError, KeyboardInterrupt):
            alone.check_call(values)
            SEEN["raises"] = error
            with pytest.raises(error):
                alone.step(*values)
            SEEN.clear()
            alone.check_variables()

    def stop(number):
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        alone.step.run([slice(0, 8)] * 4, *VALUES, progress=stop)
    for _ in range(2):
        alone.expected()
    alone.check_variables()
    synk.close()
    with synk.session(3):  # anew
        alone.check_call()
        alone.check_variables()
