"""What a history holds, and where the time of an epoch is said to have gone."""

from __future__ import annotations

import math
import sys
import time

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import synk
from synk.call.spent import Ran, Spent
from synk.exchange.group import Report
from synk.exchange.worker import Times
from synk.rules import EASGD, Exchange
from synk.train.spent import spent

SPENT = ("compute", "rows", "exchange", "wait")


class Slow(Op):
    """Passes rows on, after as many seconds as their first number says."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        time.sleep(float(inputs[0][0]))
        outputs[0][0] = np.array(inputs[0])

    def pullback(self, inputs, outputs, gradients):
        return [gradients[0]]


synk.register_sharding(Slow, "rowwise")


def slow_step(rule=None):
    """Return a step in which a rank sleeps as long as its first row says."""
    x, w = pt.vector("x"), pytensor.shared(0.0, "w")
    loss = (Slow()(x) * 0 + (w - 1) ** 2).mean()
    updates = {w: w - 0.1 * pytensor.grad(loss, w, disconnected_inputs="ignore")}
    how = {"local": rule is not None, "mode": "FAST_COMPILE"}
    return synk.Trainer(
        synk.function([x], loss, updates=updates, **how), [w], rule, shuffle=False
    )


@pytest.mark.parametrize("rule", [None, EASGD(1), EASGD(1, order="free")], ids=repr)
def test_the_time_of_an_epoch_is_divided(rule):
    """Of two ranks one sleeps 20 ms in each of 5 steps: so the other one waits."""
    with synk.session(2):
        trainer = slow_step(rule)
        trainer.fit(np.zeros(10), batch_size=2, progress=False)  # which compiles
        history = trainer.fit(np.array([0.02, 0] * 5), batch_size=2, progress=False)
    epoch = history.epochs[-1]
    assert min(epoch[name] for name in SPENT) >= 0
    assert 0.1 <= sum(epoch[name] for name in SPENT) <= epoch["seconds"]
    # Means of two ranks: half of 100 ms each, if the other one is not late itself.
    assert epoch["compute"] >= 0.05
    assert epoch["wait"] >= 0.025
    # Rank 0 sleeps in all of them.
    assert len(history.step_seconds) == len(history.losses) == 10
    assert min(history.step_seconds[5:]) >= 0.02
    assert sum(history.step_seconds[5:]) <= epoch["seconds"]
    assert history.step_rows == [2] * 10
    if rule is None:
        assert history["staleness"] == [0, 0]


def test_waiting_for_an_exchange_is_no_exchange():
    ran = Ran()
    ran.reduce, ran.wait = 1.0, 2.0
    exchanges = [Exchange(0, 1, staleness=3), Exchange(1, 1, staleness=0)]
    reports = [Report([], Times(0.75, 0.25)), Report([], Times(1.25, 0.75))]
    found = spent(9.0, ran, reports, exchanges)
    assert (found["exchange"], found["wait"]) == (1.0 + (0.5 + 0.5) / 2, 2.0 + 0.5)
    assert (found["staleness"], found["seconds"]) == (1.5, 9.0)


def test_the_time_of_a_run_is_a_mean_of_its_ranks():
    """Phases: rows, compute, common, wait, reduce, nodes; each node has its clock."""
    ran = Ran()
    ran.add(
        [
            Spent([1.0, 2.0, 0.5, 0.25, 0.125, 0.5], 10.0, [12.0, 14.0]),
            Spent([3.0, 1.0, 0.5, 0.75, 0.375, 1.5], 1000.5, [1003.0]),
        ]
    )
    assert (ran.rows, ran.compute, ran.reduce) == (2.0, 2.0, 1.25)
    assert ran.wait == (0.25 + 0.75 + 4.0 - 2.5) / 2
    assert ran.calls == [2.0, 2.0]
    ran.add([Spent([0.0, 1.0, 0.0, 0.0, 0.0, 0.0], 20.0, [21.0])])
    assert ran.compute == 3.0
    assert ran.calls == [2.0, 2.0, 1.0]


def made_history(epochs=3):
    history = synk.History()
    for epoch in range(epochs):
        spent = {"compute": 0.5, "rows": 0.1, "exchange": 0.2, "wait": 0.1}
        numbers = {"seconds": 1.0, **spent, "staleness": 0.5}
        if epoch:
            numbers["val_loss"] = 2.0 / epoch
        history.add_epoch(
            np.array([4.0, 1.0]) / (epoch + 1), [8, 4], [0.5, 0.25], numbers
        )
    return history


def test_a_history_is_read_from_its_file(tmp_path):
    history, path = made_history(), tmp_path / "history.json"
    history.add_epoch(np.array([math.inf, 1 / 3]), [8, 4], [0.1, 0.2], {"seconds": 1})
    history.save(path)
    assert vars(synk.History.load(path)) == vars(history)
    path.write_text('{"epochs": []}')
    with pytest.raises(ValueError, match=r"history\.json is no file of a history"):
        synk.History.load(path)


def test_frames_are_of_epochs_and_of_steps():
    pytest.importorskip("pandas")
    history = made_history()
    epochs, steps = history.to_frame(), history.to_frame("steps")
    assert list(epochs["step"]) == [2, 4, 6]
    assert list(epochs["loss"]) == [3.0, 1.5, 1.0]  # weighted by rows
    assert list(steps["step"]) == [1, 2, 3, 4, 5, 6]
    assert list(steps["epoch"]) == [1, 1, 2, 2, 3, 3]
    assert list(steps["loss"][:2]) == [4.0, 1.0]
    assert list(steps["rows"]) == [8, 4] * 3
    assert list(steps["seconds"]) == [0.5, 0.25] * 3
    with pytest.raises(ValueError, match="'epochs' or 'steps', got 'rows'"):
        history.to_frame("rows")


def test_a_history_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    history, path = made_history(), tmp_path / "history.png"
    figure = history.plot(path)
    assert path.read_bytes()[:4] == b"\x89PNG"
    of_steps, of_epochs, of_time = figure.axes
    each, mean = of_steps.lines
    np.testing.assert_array_equal(each.get_ydata(), history.losses)
    np.testing.assert_array_equal(mean.get_xdata(), [2, 4, 6])
    np.testing.assert_array_equal(mean.get_ydata(), history["loss"])
    (line,) = of_epochs.lines
    assert line.get_label() == "val_loss"
    np.testing.assert_array_equal(line.get_ydata(), [np.nan, 2.0, 1.0])
    heights = {bars.get_label(): bars[0].get_height() for bars in of_time.containers}
    expected = {"compute": 0.5, "rows": 0.1, "exchange": 0.2, "wait": 0.1}
    assert heights == pytest.approx(expected | {"compile, start": 0.1})
    assert of_time.containers[-1][0].get_y() == pytest.approx(0.9)  # stacked


def test_a_history_is_drawn_where_the_script_says():
    figures = pytest.importorskip("matplotlib.figure")
    figure = figures.Figure()
    axes = figure.subplots(3)
    assert made_history(1).plot(axes=axes) is figure
    assert [len(panel.lines) for panel in axes[:2]] == [2, 1]  # without validation
    assert axes[1].lines[0].get_label() == "loss"
    with pytest.raises(ValueError, match="no epoch was made yet"):
        synk.History().plot()


def test_a_first_epoch_that_compiles_does_not_hide_the_others():
    pytest.importorskip("matplotlib")
    history = made_history()
    history.epochs[0]["seconds"] = 100.0
    panel = history.plot().axes[2]
    assert panel.get_ylim() == (0, 1.5)
    assert "100 s" in panel.get_title()


@pytest.mark.parametrize("name", ["matplotlib", "pandas"])
def test_what_is_missing_is_named(name, monkeypatch):
    for module in [name, "matplotlib.figure"]:
        monkeypatch.setitem(sys.modules, module, None)
    call = {"matplotlib": made_history().plot, "pandas": made_history().to_frame}[name]
    with pytest.raises(ImportError, match="pip install"):
        call()
