"""What is done between epochs, on lists of numbers and in training."""

from __future__ import annotations

import csv
import json
import math

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from synk.callbacks import (
    Callback,
    CSVLog,
    JSONLog,
    LearningRate,
    Patience,
    Plateau,
    Target,
    TensorBoard,
    cosine,
    step_decay,
    warm_up,
)

NAN = math.nan


def epochs_until_it_stops(callback, values):
    """Return after how many epochs training ends, or None."""
    for k, value in enumerate(values):
        if callback.after_epoch(None, {"epoch": k + 1, "loss": value}):
            return k + 1
    return None


@pytest.mark.parametrize(
    ("values", "options", "end"),
    [
        ([5, 4, 3, 2, 1], {}, None),
        ([5, 4, 4, 4, 4], {"epochs": 3}, 5),
        ([5, 4, 6, 6, 3, 4, 4, 4], {"epochs": 3}, 8),
        ([1, 2, 3], {"epochs": 2}, 3),
        ([1, 2, 3], {"epochs": 2, "better": "more"}, None),
        ([3, 2, 1], {"epochs": 2, "better": "more"}, 3),
        ([1, NAN, NAN, NAN], {"epochs": 3}, 4),
        ([NAN, NAN], {"epochs": 2}, 2),
        ([NAN, 3, 2, 1], {"epochs": 2}, None),
        # Noisy, but falling: means of two and two.
        ([5, 4, 6, 2, 4, 1, 3, 0], {"epochs": 2, "smooth": True}, None),
        ([5, 4, 3, 2, 3, 2, 3, 2], {"epochs": 2, "smooth": True}, 6),
    ],
)
def test_patience_ends(values, options, end):
    assert epochs_until_it_stops(Patience("loss", **options), values) == end


@pytest.mark.parametrize(
    ("values", "target", "better", "end"),
    [
        ([3, 2, 1], 2, "less", 2),
        ([3, 2, 1], 0.5, "less", None),
        ([0.1, 0.9, 0.97], 0.95, "more", 3),
        ([NAN, 1], 2, "less", 2),
    ],
)
def test_a_target_ends(values, target, better, end):
    assert epochs_until_it_stops(Target("loss", target, better), values) == end


def test_a_name_that_is_not_there_is_an_error():
    with pytest.raises(KeyError, match=r"'acc': epoch, loss"):
        epochs_until_it_stops(Patience("acc"), [1])
    with pytest.raises(ValueError, match="'less' or 'more', got 'min'"):
        Patience("loss", better="min")


def test_schedules():
    stepped = [step_decay(1.0, [2, 4])(epoch) for epoch in range(6)]
    np.testing.assert_allclose(stepped, [1, 1, 0.1, 0.1, 0.01, 0.01])
    falling = [cosine(2.0, 4, last=1.0)(epoch) for epoch in range(6)]
    half = math.sqrt(0.5)
    np.testing.assert_allclose(falling, [2, 1.5 + half / 2, 1.5, 1.5 - half / 2, 1, 1])
    warm = [warm_up(lambda epoch: 1.0, 3)(epoch) for epoch in range(5)]
    np.testing.assert_allclose(warm, [0.25, 0.5, 0.75, 1, 1])


def test_a_rate_is_lowered_on_a_plateau():
    rate = pytensor.shared(np.float32(1), "rate")
    plateau = Plateau(rate, "loss", factor=0.5, epochs=2, least=0.2)
    rates = []
    for value in [3, 2, 2, 2, 2, 2, 1, 2, 2, 2, 2]:
        plateau.after_epoch(None, {"loss": value})
        rates.append(float(rate.get_value()))
    expected = [1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.25, 0.2, 0.2, 0.2]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
    assert rate.get_value().dtype == "float32"


def trained(callbacks, rule=None, epochs=5, **options):
    x, w = pt.vector("x"), pytensor.shared(0.0, "w")
    rate = pytensor.shared(0.1, "rate")
    loss = ((x - w) ** 2).mean()
    updates = {w: w - rate * pytensor.grad(loss, w)}
    fixed = {"mode": "FAST_COMPILE", "local": rule is not None}
    step = synk.function([x], loss, updates=updates, **fixed)
    with synk.session(2):
        trainer = synk.Trainer(step, [w], rule)
        trainer.fit(
            np.ones(8),
            batch_size=4,
            epochs=epochs,
            callbacks=callbacks(rate),
            progress=False,
            **options,
        )
    return trainer, float(w.get_value())


@pytest.mark.parametrize("rule", [None, synk.rules.LocalSGD(1)], ids=repr)
def test_rates_reach_all_ranks_and_training_ends_when_one_says_so(rule):
    asked = []

    class Asked(Callback):
        def after_epoch(self, trainer, numbers):
            asked.append(numbers["epoch"])

    def callbacks(rate):
        return [
            LearningRate(rate, lambda epoch: 0.1 / (epoch + 1)),
            lambda trainer, numbers: numbers["epoch"] == 3,
            Asked(),
        ]

    trainer, w = trained(callbacks, rule)
    rest = 1.0
    for epoch in range(3):
        rest *= (1 - 0.2 / (epoch + 1)) ** 2
    assert w == pytest.approx(1 - rest, rel=1e-12)
    assert asked == [1, 2, 3]
    assert len(trainer.history) == 3


def test_logs(tmp_path):
    path = tmp_path / "log.csv"
    trainer, _ = trained(lambda rate: [CSVLog(path)], validation=lambda: {"acc": 0.5})
    with path.open() as file:
        lines = list(csv.DictReader(file))
    assert [int(line["epoch"]) for line in lines] == [1, 2, 3, 4, 5]
    assert [float(line["loss"]) for line in lines] == trainer.history["loss"]
    assert {line["val_acc"] for line in lines} == {"0.5"}


def test_tensorboard(tmp_path, monkeypatch):
    pytest.importorskip("tensorboardX")
    trained(lambda rate: [TensorBoard(tmp_path / "runs")])
    assert list((tmp_path / "runs").iterdir())


def test_tensorboard_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorboardX", None)
    with pytest.raises(ImportError, match="pip install tensorboardX"):
        TensorBoard(tmp_path)


def test_a_log_of_json_has_a_line_for_each_epoch(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text("of an earlier run\n")
    found = iter([0.5, np.nan, 0.25])
    trainer, _ = trained(
        lambda rate: [JSONLog(path)], validation=lambda: {"acc": next(found)}, epochs=3
    )
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["val_acc"] for line in lines] == [0.5, None, 0.25]
    assert [line["loss"] for line in lines] == trainer.history["loss"]
    assert [line["epoch"] for line in lines] == [1, 2, 3]
