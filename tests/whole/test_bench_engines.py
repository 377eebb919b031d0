"""`python -m tests.bench engines`: what is compared is right, first calls are told."""

from __future__ import annotations

import dataclasses
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from bench import engines, firsts, likelihoods, network_losses, networks, report, rounds
from bench.driver import Memory, Peer, Spec
from bench.rounds import Entry, Family, Table
from places import DOCS
from tiny_bench import QUICKLY, TINY, only

AS_IT_COMES = "synk, as it comes, 2 ranks"
ALL_STEPS = dataclasses.replace(TINY, steps=(*TINY.steps, *TINY.images))


def in_python(family: Family) -> Family:
    """Return a family whose peers take the mode that the environment names."""
    peers = {
        name: spec._replace(options={**spec.options, "mode": None})
        for name, spec in family.peers.items()
    }
    return dataclasses.replace(family, peers=peers)


@pytest.mark.parametrize("make", [engines.likelihood, engines.mlp])
def test_engines_and_others_give_the_right_numbers_and_times(make, monkeypatch):
    """Those that need nothing but synk's own dependencies, and JAX."""
    pytest.importorskip("jax")
    monkeypatch.setenv("PYTENSOR_FLAGS", QUICKLY)
    rows = [AS_IT_COMES, "plain PyTensor, C", "JAX by hand, all cores"]
    family = only(in_python(make(ALL_STEPS)), *rows)
    table = rounds.run(family, ALL_STEPS, print)
    assert table.failed == {}
    assert list(table.rounds) == rows
    assert sorted([*table.rounds, *table.skipped]) == sorted(
        entry.label for entry in family.entries
    )
    for label in rows:
        assert list(table.rounds[label]) == list(family.columns)
        assert all(table.median(label, column) < 10 for column in family.columns)
        peak, together = table.memory[label]
        assert 1e7 < peak < 1e10
        assert 1e7 < together < 1e10


def test_the_loops_in_numba_are_right_and_so_is_the_read_of_x(monkeypatch):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")  # compiling takes 10 s
    family = only(engines.likelihood(TINY), "numba by hand, all cores")
    table = rounds.run(family, TINY, print)
    assert table.failed == {}
    assert set(table.rounds) == {"numba by hand, all cores", engines.READ}


def test_synk_is_measured_as_it_comes_and_in_each_mode_on_all_ranks_and_on_one():
    family = engines.mlp(dataclasses.replace(TINY, ranks=3))
    ours = {
        name: (spec.options.get("mode"), spec.options.get("ranks"))
        for name, spec in family.peers.items()
        if name.startswith("synk")
    }
    assert ours == {
        "synk, as it comes, 3 ranks": (None, None),
        "synk, C, 3 ranks": ("CVM", 3),
        "synk, C, 1 rank": ("CVM", 1),
        "synk, numba, 3 ranks": ("NUMBA", 3),
        "synk, numba, 1 rank": ("NUMBA", 1),
        "synk, JAX, 3 ranks": ("JAX", 3),
        "synk, JAX, 1 rank": ("JAX", 1),
    }
    # It averages over processes, whose parts of 8 rows are not equal.
    skipped = [entry.label for entry in family.entries if entry.skip]
    assert skipped == ["torch DDP on Gloo, 3 processes"]


def test_what_chooses_by_itself_has_chosen_before_it_is_checked(tmp_path, monkeypatch):
    source = """
    from contextlib import contextmanager

    @contextmanager
    def opened(options, place):
        asked = []

        def tune(number):
            asked.append("tune")
            return "C"

        def check(number):
            return asked

        yield {"tune a": tune, "check a": check, "time a": lambda number: 0.01}
    """
    Path(tmp_path, "choosing.py").write_text(textwrap.dedent(source))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    family = Family(
        title="a choice",
        columns={"a": "column a"},
        peers={"p": Spec("choosing")},
        entries=[Entry("row", "p", "time {}", "check {}", tune="tune {}")],
        steps=1,
        judge=lambda column, answers: None if answers == [["tune"]] else str(answers),
        pause=0,
    )
    table = rounds.run(family, TINY, print)
    assert table.failed == {}
    assert table.chosen == {"row": {"a": "C"}}


# -- what is right


@pytest.mark.parametrize("column", likelihoods.COLUMNS)
def test_gradients_of_likelihoods_are_the_slopes_of_their_values(column, monkeypatch):
    _, *gradient = likelihoods.reference.__wrapped__(TINY, column)
    point = likelihoods.beta()
    for i, slope in enumerate(gradient):
        ends = []
        for step in (1e-5, -1e-5):
            moved = point.copy()
            moved[i] += step
            monkeypatch.setattr(likelihoods, "beta", lambda moved=moved: moved)
            x = likelihoods.rows(TINY)
            monkeypatch.setattr(likelihoods, "beta", lambda: point)
            y = likelihoods.outcomes(column, x)
            terms, _ = likelihoods.TERMS[column](y, x @ moved)
            ends.append(terms.sum())
        assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(slope, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("place", [0, 1, likelihoods.WIDTH])
def test_a_wrong_value_or_gradient_is_told(place):
    right = likelihoods.reference(TINY, "student")
    assert engines.judge_likelihood(TINY, "student", [right]) is None
    wrong = list(right)
    wrong[place] += 1e-6 * abs(right[0])
    assert "should be" in engines.judge_likelihood(TINY, "student", [wrong])
    assert "should be" in engines.judge_likelihood(TINY, "student", [right[:-1]])


@pytest.mark.parametrize("kind", ["relu", "tanh", "cnn"])
def test_the_reference_descends_along_the_numerical_gradient(kind):
    options = dataclasses.replace(TINY, rows=8)
    activation = networks.step_of(f"{kind} 8").activation
    x, labels = networks.data(options, kind)
    x = x.astype("float64")
    params = [
        [w.astype("float64"), b + np.linspace(0.1, 0.2, b.size)]
        for w, b in networks.weights(options, kind)
    ]
    _, grads = network_losses.loss_and_gradients(params, x, labels, activation)
    for of_layer, of_grads in zip(params, grads, strict=True):
        for param, grad in zip(of_layer, of_grads, strict=True):
            for place in np.ndindex(param.shape):
                ends = []
                for step in (1e-6, -2e-6):
                    param[place] += step
                    loss, _ = network_losses.loss_and_gradients(
                        params, x, labels, activation
                    )
                    ends.append(loss)
                param[place] += 1e-6
                slope = (ends[0] - ends[1]) / 2e-6
                assert slope == pytest.approx(grad[place], abs=1e-7)


def test_the_loss_at_equal_logits_is_the_logarithm_of_the_classes():
    params = [[np.zeros((6, 4)), np.zeros(4)]]
    loss, _ = network_losses.loss_and_gradients(
        params, np.ones((3, 6)), np.array([0, 1, 3]), "relu"
    )
    assert loss == pytest.approx(np.log(4))


@pytest.mark.parametrize("error", [0, 1e-6, 1e-3])
def test_losses_must_be_right_to_rounding(error):
    right = network_losses.reference(TINY, "relu 8", engines.STEPS)
    wrong = [*right[:-1], right[-1] + error]
    complaint = engines.judge_losses(TINY, "relu 8", [wrong, wrong])
    assert (complaint is None) == (error < 1e-5)


def test_a_parameter_that_is_not_updated_shows_in_the_losses(monkeypatch):
    true = network_losses.loss_and_gradients

    def without_last_bias(*args):
        loss, grads = true(*args)
        grads[-1] = grads[-1][0], np.zeros_like(grads[-1][1])
        return loss, grads

    monkeypatch.setattr(network_losses, "loss_and_gradients", without_last_bias)
    make = network_losses.reference.__wrapped__
    wrong = make(TINY, "relu 8", engines.STEPS)
    assert engines.judge_losses(TINY, "relu 8", [wrong]) is not None


# -- first calls

CACHING = """
    import os
    from contextlib import contextmanager
    from pathlib import Path

    def run(seconds):
        flags = os.environ["PYTENSOR_FLAGS"]
        kept = Path(flags.rpartition("base_compiledir=")[2], "kept")
        names = os.environ["XDG_CACHE_HOME"], os.environ["MY_CACHE"]
        assert names == (str(kept.parent),) * 2
        before = kept.read_text() if kept.exists() else ""
        kept.write_text(before + "x")
        return [0.01, 1 + len(before), seconds]

    @contextmanager
    def opened(options, place):
        yield {"run a": run, "run b": run}
"""


def caching(tmp_path: Path, monkeypatch) -> Table:
    """Return a table with rounds, of a peer that counts its processes on disk."""
    Path(tmp_path, "caching.py").write_text(textwrap.dedent(CACHING))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTENSOR_FLAGS", "mode=FAST_COMPILE")
    entry = Entry("one", "p", "", "", run="run {}")
    family = Family(
        title="first calls",
        columns={"a": "column a", "b": "column b"},
        peers={"p": Spec("caching", caches=("MY_CACHE",))},
        entries=[entry, entry._replace(label="chooses", tune="tune {}")],
        steps=1,
        judge=lambda column, answers: None,
        pause=0,
        first=("a", "b"),
    )
    of_row = {"a": [0.01], "b": [0.01]}
    return Table(family, {"one": of_row, "chooses": of_row})


def test_a_first_process_finds_nothing_on_disk_and_the_next_what_it_left(
    tmp_path, monkeypatch
):
    table = caching(tmp_path, monkeypatch)
    firsts.measure(table, TINY, print)
    assert table.failed == {}
    assert table.cold["one"] == {"a": [0.01, 1, 0], "b": [0.01, 1, 0]}
    assert table.warm["one"] == {"a": [0.01, 2, 0], "b": [0.01, 2, 0]}
    assert table.cold["chooses"]["a"] == [0.01, 1, TINY.follow]


def test_a_first_call_that_fails_is_told(tmp_path, monkeypatch):
    table = caching(tmp_path, monkeypatch)
    table.family.peers["p"] = Spec("caching")  # no folder for MY_CACHE
    monkeypatch.delenv("MY_CACHE", raising=False)
    firsts.measure(table, TINY, print)
    assert "KeyError: 'MY_CACHE'" in table.failed["one, first calls"]
    assert table.cold == {}


def test_a_peak_is_that_since_the_last_look(tmp_path, monkeypatch):
    source = """
    from contextlib import contextmanager

    @contextmanager
    def opened(options, place):
        large = b"x" * 200_000_000
        del large
        yield {"it": lambda number: len(b"x" * number)}
    """
    Path(tmp_path, "growing.py").write_text(textwrap.dedent(source))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    peer = Peer("growing", Spec("growing"), TINY)
    try:
        peer.wait_until_ready()
        assert peer.memory().peak > 200e6
        peer.forget_peaks()
        assert peer.memory().peak < 100e6
        peer.ask("it", 100_000_000)
        assert 100e6 < peer.memory().peak < 200e6
        assert peer.memory().together < 100e6
    finally:
        peer.end()


def test_the_report_has_first_calls_choices_and_memory():
    label = AS_IT_COMES
    family = dataclasses.replace(
        engines.mlp(TINY), columns={"relu 8": "8 rows, relu"}, first=("relu 8",)
    )
    other = "synk, C, 2 ranks"
    table = Table(family, {label: {"relu 8": [0.1]}, other: {"relu 8": [0.2]}})
    table.cold[other], table.warm[other] = {"relu 8": [5.0]}, {"relu 8": [1.0]}
    table.cold[label] = {"relu 8": [3.0, *[0.3] * 10, *[0.1] * 40]}
    table.warm[label] = {"relu 8": [0.5, *[0.1] * 95]}
    table.memory[label] = Memory(123_400_000, 456_000_000)
    table.chosen[label] = {"relu 8": "JAX"}
    for text in (report.text(table), report.rst([table], TINY)):
        assert "ynk, as it comes, 2 ranks, chose JAX (8 rows, relu)." in text
        lines = [line for line in text.splitlines() if line.startswith((label, "8 "))]
        rows = [[cell for cell in line.split("  ") if cell] for line in lines]
        cells = [[cell.strip() for cell in row] for row in rows]
        assert [label, "3.00 s / 500 ms"] in cells
        assert [
            "8 rows, relu",
            "6.00 s / 500 ms",
            "1.96 in 10 s / 2.09 in 10 s",  # 51 of 26 calls, and 96 of 46
        ] in cells
        assert [label, "123 MB / 456 MB"] in cells


# -- the page


def test_the_picture_shows_what_the_command_writes(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(DOCS))
    for name in [name for name in sys.modules if name.split(".")[0] == "pictures"]:
        monkeypatch.delitem(sys.modules, name)
    from pictures import of_engines

    table = Table(engines.likelihood(TINY))
    for i, entry in enumerate(table.family.entries):
        times = {column: [(i + 1) * 1e-3] for column in table.family.columns}
        table.rounds[entry.label] = times
    table.memory[AS_IT_COMES] = Memory(1, 1)
    (tmp_path / "engines.inc").write_text(report.rst([table], TINY))
    monkeypatch.setattr(of_engines, "DOCS", tmp_path)
    (found,) = of_engines.gather()
    assert found.title.startswith("Log-likelihood and its gradient")
    assert list(found.columns) == list(table.family.columns.values())
    for times in found.columns.values():
        assert list(times) == list(table.rounds)
        assert times["synk, C, 2 ranks"] == (0.002, 2.0)
    figure = of_engines.draw([found])
    (part,) = figure.subfigs
    assert len(part.axes) == len(found.columns)
    for ax in part.axes:
        assert len(ax.patches) == len(table.rounds) - 1  # a line for the read of X
