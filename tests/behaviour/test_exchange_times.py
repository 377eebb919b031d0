"""What `explain` and the timeline say of exchanges under training rules."""

from __future__ import annotations

import json
import time

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from synk.ranks.session import SESSION
from synk.rules import EASGD, Gossip, LocalSGD

SIZE, STEPS = 30, 12


def trainer_by(rule):
    x = pt.matrix("x")
    w = pytensor.shared(np.zeros(SIZE), "w")
    loss = ((x - w) ** 2).mean()
    updates = synk.updates.sgd([pytensor.grad(loss, w)], [w], learning_rate=0.1)
    options = {"mode": "FAST_COMPILE", "local": rule is not None}
    step = synk.function([x], loss, updates=updates, name="step", **options)
    return step, synk.Trainer(step, [w], rule)


def fit(trainer):
    data = np.random.default_rng(0).normal(size=(STEPS * 4, SIZE))
    trainer.fit(data, batch_size=4, progress=False)


@pytest.mark.parametrize(
    "rule",
    [LocalSGD(3), EASGD(3, order="turns"), EASGD(3, order="free")],
    ids=["together", "turns", "free"],
)
def test_exchanges_are_told_of_each_rank(rule, tmp_path):
    step, trainer = trainer_by(rule)
    path = tmp_path / "steps.json"
    with synk.session(2):
        fit(trainer)
        with synk.trace(path):
            fit(trainer)
        told = step.explain().to_dict()["exchanges"]
        text = str(step.explain())
        html = step.explain()._repr_html_()
        last = trainer.exchanges
    assert told["rule"] == repr(rule)
    assert told["bytes"] == 8 * SIZE
    each = STEPS // 3
    assert [of_rank["exchanges"] for of_rank in told["ranks"]] == [2 * each] * 2
    for of_rank in told["ranks"]:
        assert 0 <= of_rank["wait"] <= of_rank["milliseconds"]
    assert f"rank 1: {2 * each} exchanges" in text
    assert f"rank 1: {2 * each} exchanges" in html

    events = json.loads(path.read_text())["traceEvents"]
    made = [event for event in events if event["name"] == "exchange"]
    for rank in range(2):
        of_rank = [event for event in made if event["tid"] == rank]
        steps = [event["args"]["step"] for event in of_rank]
        assert steps == [STEPS + 3 * (k + 1) for k in range(each)]
        staleness = [event["args"]["staleness"] for event in of_rank]
        assert staleness == [
            exchange.staleness for exchange in last if exchange.rank in (rank, None)
        ]
    if rule.order == "turns":  # the other one comes in between, but the first time
        means = [of_rank["staleness"] for of_rank in told["ranks"]]
        assert means == [(2 * each - 1) / (2 * each), 1.0]
        assert [of_rank["most_stale"] for of_rank in told["ranks"]] == [1, 1]


def test_who_waits_for_a_slow_rank_is_told():
    step, trainer = trainer_by(EASGD(1, order="together"))
    with synk.session(2):
        fit(trainer)
        SESSION.run(worker_be_slow)
        fit(trainer)
        first, second = step.explain().to_dict()["exchanges"]["ranks"]
        reported = trainer.history["wait"][-1]
    slept = 0.01 * STEPS
    assert first["wait"] * first["exchanges"] * 1e-3 >= 0.9 * slept
    assert first["waits"] >= STEPS
    assert second["wait"] < first["wait"]
    assert reported >= 0.9 * slept / 2  # the mean of both ranks


def worker_be_slow(context):
    """Have rank 1 sleep before each of its exchanges."""
    (worker,) = context.workers.values()
    if context.rank == 1:
        after_step = worker.after_step

        def slowly(rows):
            time.sleep(0.01)
            after_step(rows)

        worker.after_step = slowly


def test_gossip_counts_what_is_sent():
    step, trainer = trainer_by(Gossip(0.5))
    with synk.session(2):
        fit(trainer)
        sent = len(trainer.exchanges)
        told = step.explain().to_dict()["exchanges"]["ranks"]
    assert sum(of_rank["exchanges"] for of_rank in told) == sent > 0


def test_exact_training_has_none():
    step, trainer = trainer_by(None)
    with synk.session(2):
        fit(trainer)
        assert step.explain().to_dict()["exchanges"] is None
