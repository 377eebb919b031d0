"""`Trainer` and training rules on ranks, beside serial training and the simulator."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
import time

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

import synk
from synk.memory.partition import cuts
from synk.ranks.session import SESSION
from synk.rules import (
    ASGD,
    EASGD,
    GEM,
    DiLoCo,
    Downpour,
    Gossip,
    LocalSGD,
    ParameterAveraging,
    Rule,
    simulate,
)
from synk.train.batches import batches_of_epoch

FAST = Mode("py", "fast_compile")  # nothing is compiled to C
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(37, 3))
Y = X @ [1.0, -2.0, 0.5] + 0.1 * RANDOM.normal(size=37)
START = np.array([0.3, 0.1, -0.2, 0.0])


def make(make_function, grad, lr=0.05, mu=0.0, **options):
    """Return a step of linear regression, and its parameters: w and b."""
    x, y = pt.matrix("x"), pt.vector("y")
    w, b = pytensor.shared(START[:3].copy(), "w"), pytensor.shared(START[3], "b")
    loss = ((x @ w + b - y) ** 2).mean()
    updates = synk.updates.momentum(grad(loss, [w, b]), [w, b], lr, mu)
    return make_function([x, y], loss, updates=updates, **options), [w, b]


def local(**options):
    return make(synk.function, pytensor.grad, local=True, mode=FAST, **options)


def exact(**options):
    return make(synk.function, pytensor.grad, mode=FAST, **options)


def flat(values):
    return np.concatenate([np.ravel(value) for value in values])


def values_of(params):
    return flat([param.get_value() for param in params])


def simulated(rule, n, batch_size, epochs, schedule=None, lr=0.05):
    """Return a simulation that makes the very steps of the ranks of a trainer."""
    grads, params = make(pytensor.function, pytensor.grad, lr=lr, mode=FAST)
    state = [var for var in grads.get_shared() if var not in params]
    batches = [
        batch for e in range(epochs) for batch in batches_of_epoch(37, batch_size, 0, e)
    ]
    kept = {}

    def mine(rank, k):
        ends = cuts(len(batches[k]), n)
        return batches[k][ends[rank] : ends[rank + 1]]

    def step(w, rank, k):
        rows = mine(rank, k)
        if not len(rows):
            return w
        params[0].set_value(w[:3]), params[1].set_value(w[3])
        for i, var in enumerate(state):
            var.set_value(kept.get((rank, i), np.zeros_like(var.get_value())))
        grads(X[rows], Y[rows])
        kept.update({(rank, i): var.get_value() for i, var in enumerate(state)})
        return values_of(params)

    return simulate(
        rule,
        step,
        len(batches) if schedule is None else schedule,
        n,
        START,
        rows=lambda rank, k: len(mine(rank, k)),
    )


TOGETHER = [
    ParameterAveraging(),
    LocalSGD(3, after=2),
    EASGD(2),
    ASGD(2),
    Downpour(2, "adam", 0.02),
    GEM(1, 0.5),
    DiLoCo(4),
    DiLoCo(4, fragments=2, delay=1),
]
TURNS = [
    EASGD(2, order="turns"),
    ASGD(2, order="turns"),
    Downpour(2, "adam", 0.02, order="turns"),
    GEM(1, 0.5, order="turns"),
    DiLoCo(4, order="turns"),
    DiLoCo(4, fragments=2, delay=1, order="turns"),
    Gossip(0.5, seed=2, order="turns"),
]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_exact_training_is_the_serial_loop(ranks):
    plain, params = make(pytensor.function, pytensor.grad, mode=FAST)
    losses = [
        plain(X[batch], Y[batch])
        for epoch in range(3)
        for batch in batches_of_epoch(37, 8, 0, epoch)
    ]
    with synk.session(ranks):
        step, mine = exact()
        history = synk.Trainer(step, mine).fit(
            X, Y, batch_size=8, epochs=3, progress=False
        )
        np.testing.assert_allclose(values_of(mine), values_of(params), rtol=1e-10)
        np.testing.assert_allclose(history.losses, losses, rtol=1e-10)
    assert len(history) == 3
    assert history["step"] == [5, 10, 15]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_local_sgd_of_one_step_is_exact_training(ranks):
    """Tails are uneven: 37 rows in batches of 8 leave 5."""
    plain, params = make(pytensor.function, pytensor.grad, mode=FAST)
    for epoch in range(2):
        for batch in batches_of_epoch(37, 8, 0, epoch):
            plain(X[batch], Y[batch])
    with synk.session(ranks):
        step, mine = local()
        trainer = synk.Trainer(step, mine, LocalSGD(every=1))
        trainer.fit(X, Y, batch_size=8, epochs=2, progress=False)
        np.testing.assert_allclose(values_of(mine), values_of(params), rtol=1e-10)
        np.testing.assert_allclose(flat(trainer.centre), values_of(params), rtol=1e-10)


@pytest.mark.parametrize("rule", [*TOGETHER, *TURNS], ids=repr)
def test_ranks_are_the_simulator_bit_by_bit(rule):
    # Who gossips has nobody to choose from among two.
    for ranks in (2, 3) if rule in (TOGETHER[0], TURNS[0], TURNS[-1]) else (3,):
        with synk.session(ranks):
            step, params = local()
            trainer = synk.Trainer(step, params, rule)
            trainer.fit(X, Y, batch_size=8, epochs=3, progress=False)
            expected = simulated(rule, ranks, 8, 3)
            if rule.has_centre:
                assert flat(trainer.centre).tobytes() == expected.centre.tobytes()
                assert values_of(params).tobytes() == expected.result().tobytes()
            average = flat(trainer.average())
            np.testing.assert_allclose(average, expected.average(), rtol=1e-13)
            for rank in range(ranks):
                for var in params:  # equal on all ranks afterwards
                    found = synk.get_value(rank, var)
                    assert found.tobytes() == var.get_value().tobytes()


FREE = [
    EASGD(2, order="free"),
    ASGD(2, order="free"),
    Downpour(2, "adam", 0.02, order="free"),
    GEM(1, 0.5, order="free"),
    DiLoCo(4, order="free"),
]


def as_schedule(exchanges, n, steps):
    """Return whose steps came when, so that exchanges come in their order."""
    made = [0] * n
    for exchange in exchanges:
        for _ in range(exchange.step - made[exchange.rank]):
            yield exchange.rank
        made[exchange.rank] = exchange.step
    for rank in range(n):
        yield from [rank] * (steps - made[rank])


@pytest.mark.parametrize("rule", FREE, ids=repr)
def test_a_free_run_is_replayed_in_its_order(rule):
    with synk.session(3):
        step, params = local()
        trainer = synk.Trainer(step, params, rule)
        exchanges = []
        for _ in range(3):
            trainer.fit(X, Y, batch_size=8, progress=False)
            exchanges += trainer.exchanges
        assert len(exchanges) == sum(bool(rule.due(k + 1)) for k in range(15)) * 3
        schedule = list(as_schedule(exchanges, 3, 15))
        expected = simulated(rule, 3, 8, 3, schedule)
        assert [e[:3] for e in exchanges] == [e[:3] for e in expected.exchanges]
        assert [e.staleness for e in exchanges] == [
            e.staleness for e in expected.exchanges
        ]
        np.testing.assert_allclose(
            flat(trainer.centre), expected.centre, rtol=1e-12, atol=1e-13
        )


EVERY_RULE = [*TOGETHER, *TURNS, *FREE, Gossip(0.5)]


def test_without_a_learning_rate_nothing_moves():
    with synk.session(2):
        step, params = local(lr=0.0)
        for rule in EVERY_RULE:
            trainer = synk.Trainer(step, params, rule)
            trainer.fit(X, Y, batch_size=8, epochs=2, progress=False)
            np.testing.assert_allclose(values_of(params), START, rtol=1e-15)
            np.testing.assert_allclose(flat(trainer.average()), START, rtol=1e-14)


def test_what_a_trainer_has_set_is_the_scripts_and_training_goes_on():
    rule = EASGD(2, order="turns")
    with synk.session(2):
        step, params = local()
        whole = synk.Trainer(step, params, rule)
        whole.fit(X, Y, batch_size=8, epochs=4, progress=False)
        expected = values_of(params)
        params[0].set_value(START[:3]), params[1].set_value(START[3])
        trainer = synk.Trainer(step, params, rule)
        for _ in range(2):
            trainer.fit(X, Y, batch_size=8, epochs=2, progress=False)
            assert str(synk.state(params[0])).startswith("equal")
        # Velocities are kept between calls: the step has none here (mu is 0).
        np.testing.assert_array_equal(values_of(params), expected)
        # What the script sets is what all begin with.
        params[0].set_value(START[:3]), params[1].set_value(START[3])
        fresh = synk.Trainer(step, params, rule)
        fresh.history.epochs = list(trainer.history.epochs)
        trainer.fit(X, Y, batch_size=8, progress=False)
        found = values_of(params)
        params[0].set_value(START[:3]), params[1].set_value(START[3])
        fresh.fit(X, Y, batch_size=8, progress=False)
        np.testing.assert_array_equal(values_of(params), found)


def test_validation_sees_the_centre_and_disturbs_no_worker():
    rule = EASGD(2, order="turns")
    x, y = pt.matrix("x"), pt.vector("y")
    with synk.session(2):
        ends = []
        for validates in (False, True):
            step, params = local()
            error = synk.function(
                [x, y], ((x @ params[0] + params[1] - y) ** 2).mean(), mode=FAST
            )
            trainer = synk.Trainer(step, params, rule)
            history = trainer.fit(
                X,
                Y,
                batch_size=8,
                epochs=3,
                progress=False,
                validation=(error, X, Y) if validates else None,
            )
            ends.append(values_of(params))
        np.testing.assert_array_equal(*ends)
        w = ends[1]
        expected = np.mean((X @ w[:3] + w[3] - Y) ** 2)
        np.testing.assert_allclose(history["val_loss"][-1], expected, rtol=1e-10)


def test_a_rule_of_the_scripts_own():
    class Midpoint(Rule):
        """Worker and centre meet half way."""

        def give(self, worker, centre, group):
            d = (worker["w"] - centre["c"]) / 2
            return {"w": worker["w"] - d}, d / group.n

        def move(self, centre, given):
            return {"c": centre["c"] + given}

    with synk.session(2):
        step, params = local()
        trainer = synk.Trainer(step, params, Midpoint(every=2))
        trainer.fit(X, Y, batch_size=8, epochs=2, progress=False)
        expected = simulated(Midpoint(every=2), 2, 8, 2)
        assert flat(trainer.centre).tobytes() == expected.centre.tobytes()


def test_a_step_that_is_not_local_is_refused():
    with pytest.raises(ValueError, match=r"is exact training, and EASGD\("):
        synk.Trainer(*exact(), EASGD(2))
    step, params = make(synk.function, synk.grad, local=True, mode=FAST)
    with pytest.raises(ValueError, match="reduces values of all ranks"):
        synk.Trainer(step, params, EASGD(2))
    with pytest.raises(ValueError, match="does not update other"):
        synk.Trainer(step, [pytensor.shared(0.0, "other")])


def test_parameters_of_two_dtypes_are_refused():
    x = pt.vector("x")
    v, w = pytensor.shared(np.float32(0), "v"), pytensor.shared(0.0, "w")
    step = synk.function(
        [x], x.sum(), updates={v: v + 1, w: w + 1}, local=True, mode=FAST
    )
    with synk.session(1):
        trainer = synk.Trainer(step, [v, w], EASGD(1))
        with pytest.raises(TypeError, match="these are float32, float64"):
            trainer.fit(X[:, 0], batch_size=8, progress=False)


def big(rule_step=0.0, size=60_000):
    """Return a local step of many parameters, which moves them by `rule_step`."""
    x = pt.vector("x")
    w = pytensor.shared(np.zeros(size), "w")
    v = pytensor.shared(np.zeros((3, 7)), "v")
    moved = rule_step * (pt.cos(x.sum()) + 1)
    updates = {w: w + moved, v: v - moved}
    step = synk.function([x], x.sum(), updates=updates, local=True, mode=FAST)
    return step, [v, w]


@pytest.mark.slow
def test_four_free_ranks_keep_the_sum_that_easgd_keeps():
    with synk.session(4):
        step, params = big(size=40_000)
        trainer = synk.Trainer(step, params, EASGD(1, order="free"))
        trainer.fit(np.arange(8.0), batch_size=8, progress=False)
        workers = trainer._workers
        # Workers apart, and no more steps: what moves is exchanged.
        begin = RANDOM.normal(size=(4, 40_021))
        for rank in range(4):
            values = begin[rank]
            SESSION.run(worker_put, workers.number, rank, values)
        total = begin.sum(0) + flat(trainer.centre)
        for _ in range(5):
            trainer.fit(np.arange(4000.0), batch_size=8, progress=False)
            mean = flat(trainer.average())
            np.testing.assert_allclose(
                4 * mean + flat(trainer.centre), total, atol=1e-10
            )


def worker_put(context, number, rank, values):
    if context.rank == rank:
        worker = context.workers[number]
        former = worker.parameters.set(values)
        worker._own = worker.parameters.set(values)
        worker.parameters.put_back(former)


def test_free_gossip_keeps_the_weighed_sum():
    with synk.session(3):
        step, params = big(size=500)
        trainer = synk.Trainer(step, params, Gossip(0.3, seed=1))
        trainer.fit(np.arange(9.0), batch_size=9, progress=False)
        begin = RANDOM.normal(size=(3, 521))
        for rank in range(3):
            number = trainer._workers.number
            SESSION.run(worker_put, number, rank, begin[rank])
        expected = flat(trainer.average())
        trainer.fit(np.arange(900.0), batch_size=9, progress=False)
        np.testing.assert_allclose(flat(trainer.average()), expected, atol=1e-12)


@pytest.mark.parametrize("n", [2, 3])
def test_staleness_is_bounded_where_it_is_to_be(n):
    with synk.session(n):
        step, params = local()
        rule = Downpour(1, learning_rate=0.1, max_staleness=n - 1, order="free")
        trainer = synk.Trainer(step, params, rule)
        for _ in range(3):
            trainer.fit(X, Y, batch_size=4, epochs=1, progress=False)
            assert len(trainer.exchanges) == 10 * n
            assert max(found.staleness for found in trainer.exchanges) <= n - 1


def test_staleness_is_bounded_from_launch_to_launch():
    """A generator's batches are launched 64 at a time, and fewer while engines vie."""
    with synk.session(2):
        step, params = local()
        rule = Downpour(1, learning_rate=0.1, max_staleness=1, order="free")
        trainer = synk.Trainer(step, params, rule)
        trainer.fit(X, Y, batch_size=4, progress=False)
        workers = trainer._ready(is_whole=True)
        batches = ([k % 37, (k + 1) % 37] for k in range(300))
        step.run_as_workers(workers.number, batches, X, Y)
        found = [e for report in workers.report() for _, e in report.exchanges]
        assert len(found) == 600
        assert max(exchange.staleness for exchange in found) <= 1


@pytest.mark.parametrize("order", ["together", "turns", "free"])
def test_a_rank_that_is_killed_leaves_a_centre_that_is_whole(order):
    random = np.random.default_rng(5)
    with synk.session(3):
        for _ in range(3):
            step, params = big(rule_step=1e-3, size=200_000)
            trainer = synk.Trainer(step, params, EASGD(1, order=order))
            trainer.fit(np.ones(6), batch_size=6, progress=False)
            pid = SESSION.run(worker_pid)[1]
            delay = random.uniform(0.0, 0.2)
            killer = threading.Timer(delay, os.kill, (pid, signal.SIGKILL))
            killer.start()
            with pytest.raises(synk.WorkerDied):
                train_on(trainer)
            killer.join()
            w = trainer.centre[1]
            # Of each vector all elements are equal, but for the blocks that the last
            # exchanges have reached.
            assert np.isfinite(w).all()
            assert len(np.unique(w)) <= 4
            synk.recover()
            trainer.fit(np.ones(6), batch_size=6, progress=False)
            assert np.isfinite(flat(trainer.centre)).all()


def train_on(trainer):
    """Train until something ends it."""
    for _ in range(1000):
        trainer.fit(np.ones(6000), batch_size=6, progress=False)


def worker_pid(context):
    return os.getpid()


@pytest.mark.parametrize("rule", [EASGD(1, order="turns"), Gossip(1, order="turns")])
def test_a_rank_that_stands_still_is_waited_for_as_long_as_was_said(rule):
    with synk.session(2, timeout=2):
        step, params = local()
        trainer = synk.Trainer(step, params, rule)
        trainer.fit(X, Y, batch_size=8, progress=False)
        pid = SESSION.run(worker_pid)[1]
        timer = threading.Timer(0.2, os.kill, (pid, signal.SIGSTOP))
        timer.start()
        start = time.perf_counter()
        with pytest.raises(synk.RankTimeout):
            trainer.fit(X, Y, batch_size=1, epochs=1000, progress=False)
        timer.join()
        assert time.perf_counter() - start < 20


def test_an_interrupt_leaves_a_centre_to_go_on_from():
    with synk.session(2):
        step, params = big(rule_step=1e-3)
        trainer = synk.Trainer(step, params, EASGD(1, order="free"))
        trainer.fit(np.ones(6), batch_size=6, progress=False)
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            train_on(trainer)
        timer.join()
        centre = flat(trainer.centre)
        assert np.isfinite(centre).all()
        trainer.fit(np.ones(6), batch_size=6, progress=False)
        assert abs(flat(trainer.centre) - centre).max() < 0.1


@pytest.mark.parametrize("is_seen", [False, True])
def test_parameters_are_shown_when_somebody_sees_them(is_seen, tmp_path):
    with synk.session(2):
        step, params = local()
        trainer = synk.Trainer(step, params, EASGD(2))
        seen = []
        how = {"validation": lambda: seen.append(values_of(params)) or 0.0}
        with synk.trace(tmp_path / "trace.json"):
            trainer.fit(
                X, Y, batch_size=8, epochs=3, progress=False, **how if is_seen else {}
            )
        assert str(synk.state(params[0])).startswith("equal")
        np.testing.assert_array_equal(values_of(params), flat(trainer.centre))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    shown = [e["tid"] for e in events if e["name"] == "show"]
    assert sorted(shown) == ([0, 0, 0, 1, 1, 1] if is_seen else [0, 1])
    assert len(seen) == 3 * is_seen


def test_an_interrupt_between_epochs_leaves_a_centre_to_go_on_from(monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    with synk.session(2):
        step, params = local()
        trainer = synk.Trainer(step, params, EASGD(2, order="turns"))
        with monkeypatch.context() as patch:
            patch.setattr(synk.History, "add_epoch", interrupted)
            with pytest.raises(KeyboardInterrupt):
                trainer.fit(X, Y, batch_size=8, epochs=2, progress=False)
        centre = trainer.centre
        trainer.fit(X, Y, batch_size=8, progress=False)
        found = values_of(params)
        for var, value in zip(params, centre, strict=True):
            var.set_value(value)
        other = synk.Trainer(step, params, EASGD(2, order="turns"))
        other.fit(X, Y, batch_size=8, progress=False)
        np.testing.assert_array_equal(values_of(params), found)


def test_an_epoch_has_every_row_once_for_any_batch_size():
    for rows, batch_size in itertools.product((1, 7, 37), (1, 8, 100)):
        batches = batches_of_epoch(rows, batch_size, 3, 1)
        assert sorted(np.concatenate(batches)) == list(range(rows))
        assert {len(b) for b in batches[:-1]} <= {batch_size}
    first, second = (batches_of_epoch(37, 37, 0, epoch)[0] for epoch in (0, 1))
    assert (first != second).any()


def test_a_history_is_kept_and_shown(tmp_path):
    with synk.session(2):
        step, params = local()
        trainer = synk.Trainer(step, params, EASGD(2, order="free"))
        start = time.perf_counter()
        history = trainer.fit(X, Y, batch_size=8, epochs=2, progress=True)
        assert sum(history["seconds"]) < time.perf_counter() - start
    assert history is trainer.history
    assert max(epoch["staleness"] for epoch in history.epochs) >= 0
    history.save(tmp_path / "history.json")
    assert vars(synk.History.load(tmp_path / "history.json")) == vars(history)


IN_BETWEEN = DiLoCo(4, fragments=2, delay=2)  # has given at the end of an epoch
RESUMED = [None, *TOGETHER, *TURNS, IN_BETWEEN]


@pytest.mark.parametrize("rule", RESUMED, ids=repr)
def test_training_goes_on_from_a_file_bit_by_bit(rule, tmp_path):
    """Five steps an epoch: rounds are cut in their midst. Velocities come along."""
    path = tmp_path / "saved.npz"

    def started():
        step, params = (exact if rule is None else local)(mu=0.9)
        return synk.Trainer(step, params, rule, seed=3), params

    def go_on(trainer, params):
        history = trainer.fit(X, Y, batch_size=8, epochs=2, progress=False)
        ends = [values_of(params)]
        if rule is not None:
            ends.append(flat(trainer.average()))
            if rule.has_centre:
                ends.append(flat(trainer.centre))
            else:
                assert not hasattr(trainer, "centre")
        return history.losses, [end.tobytes() for end in ends]

    with synk.session(2):
        trainer, params = started()
        trainer.fit(X, Y, batch_size=8, epochs=1, progress=False)
        trainer.save(path)
        trainer.save(path)  # which changes nothing
        expected = go_on(trainer, params)
    with synk.session(2):
        trainer, params = started()
        trainer.load(path)
        assert go_on(trainer, params) == expected
    assert len(trainer.history) == 3


def test_random_streams_of_each_rank_go_on_from_a_file(tmp_path):
    def started():
        x, w = pt.vector("x"), pytensor.shared(np.zeros(3), "w")
        stream = pytensor.shared(np.random.default_rng(1), "stream")
        after, noise = pt.random.normal(size=3, rng=stream).owner.outputs
        updates = {w: w + noise * x.mean(), stream: after}
        step = synk.function([x], w.sum(), updates=updates, local=True, mode=FAST)
        return synk.Trainer(step, [w], LocalSGD(3))

    ends = []
    for loads in (False, True):
        with synk.session(2):
            trainer = started()
            if loads:
                trainer.load(tmp_path / "saved.npz")
            else:
                trainer.fit(Y, batch_size=8, progress=False)
                trainer.save(tmp_path / "saved.npz")
            trainer.fit(Y, batch_size=8, progress=False)
            ends.append((trainer.history.losses, flat(trainer.average()).tobytes()))
    assert ends[0] == ends[1]


def test_a_file_of_another_training_is_refused(tmp_path):
    path = tmp_path / "saved.npz"
    with synk.session(2):
        step, params = local()
        trainer = synk.Trainer(step, params, EASGD(2))
        trainer.fit(X, Y, batch_size=8, progress=False)
        trainer.save(path)
        for other, why in (
            (synk.Trainer(step, params, EASGD(3)), r"the rule EASGD\(every=2"),
            (synk.Trainer(step, params, EASGD(2), seed=1), "the seed 0"),
        ):
            with pytest.raises(synk.CheckpointError, match=why):
                other.load(path)
        synk.save(path, params)
        with pytest.raises(synk.CheckpointError):
            trainer.load(path)
    with synk.session(1):
        trainer.save(path)
    why = r"of 1 ranks, and there are 2, .*: by EASGD\(.*\) each rank has parameters"
    with synk.session(2), pytest.raises(synk.CheckpointError, match=why):
        trainer.load(path)


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 2)])
def test_exact_training_goes_on_from_a_file_on_another_number_of_ranks(
    before, after, tmp_path
):
    plain, params = make(pytensor.function, pytensor.grad, mu=0.9, mode=FAST)
    for epoch in range(3):
        for batch in batches_of_epoch(37, 8, 3, epoch):
            plain(X[batch], Y[batch])
    with synk.session(before):
        step, mine = exact(mu=0.9)
        trainer = synk.Trainer(step, mine, seed=3)
        trainer.fit(X, Y, batch_size=8, progress=False)
        trainer.save(tmp_path / "saved.npz")
    with synk.session(after):
        step, mine = exact(mu=0.9)
        trainer = synk.Trainer(step, mine, seed=3)
        trainer.load(tmp_path / "saved.npz")
        history = trainer.fit(X, Y, batch_size=8, epochs=2, progress=False)
        for rank in range(after):
            found = flat(synk.get_value(rank, mine))
            np.testing.assert_allclose(found, values_of(params), rtol=1e-10)
    assert history["step"] == [5, 10, 15]


def drawing():
    """Return a trainer whose step draws numbers, those of each row and of all."""
    x, w = pt.vector("x"), pytensor.shared(np.zeros(3), "w")
    stream = pytensor.shared(np.random.default_rng(1), "stream")
    after, noise = pt.random.normal(size=3, rng=stream).owner.outputs
    after, of_row = pt.random.normal(size=x.shape, rng=after).owner.outputs
    updates = {w: w + noise * (x + of_row).mean(), stream: after}
    return synk.Trainer(synk.function([x], w.sum(), updates=updates, mode=FAST), [w])


def test_random_streams_of_another_number_of_ranks_follow_from_rank_0s(tmp_path):
    """As of a stream that the script has set: its state on rank 0 is the file's."""
    with synk.session(2):
        trainer = drawing()
        trainer.fit(Y, batch_size=8, progress=False)
        trainer.save(tmp_path / "saved.npz")
        values = [var.get_value() for var in trainer.step.updated]
    ends = []
    for loads in (True, False):
        with synk.session(3):
            trainer = drawing()
            if loads:
                trainer.load(tmp_path / "saved.npz")
            else:
                for var, value in zip(trainer.step.updated, values, strict=True):
                    var.set_value(value)
            batches = batches_of_epoch(37, 8, 0, 1)
            ends.append(trainer.step.run(batches, Y).tolist())
    assert ends[0] == ends[1]


def test_values_of_each_ranks_own_are_not_those_of_another_number_of_ranks(tmp_path):
    def started():
        x, w = pt.vector("x"), pytensor.shared(0.0, "w")
        own = pytensor.shared(0.0, "own")
        updates = [(w, w + x.mean()), (own, own + x.sum(), None)]
        return synk.Trainer(synk.function([x], x.mean(), updates=updates), [w])

    path = tmp_path / "saved.npz"
    with pytensor.config.change_flags(mode=FAST):
        with synk.session(2):
            trainer = started()
            trainer.fit(Y, batch_size=8, progress=False)
            trainer.save(path)
        with synk.session(2):
            started().load(path)
        why = "there are 3, .*: own was each rank's own"
        with synk.session(3), pytest.raises(synk.CheckpointError, match=why):
            started().load(path)


@pytest.mark.parametrize("rule", [None, LocalSGD(2)], ids=repr)
def test_rows_that_are_chosen_are_trained_on_as_if_there_were_no_others(rule):
    some = np.flatnonzero(Y > 0)
    ends = []
    for chosen, data in ((Y > 0, (X, Y)), (None, (X[some], Y[some]))):
        with synk.session(2):
            step, params = (exact if rule is None else local)(mu=0.9)
            trainer = synk.Trainer(step, params, rule)
            history = trainer.fit(
                *data, batch_size=8, epochs=2, rows=chosen, progress=False
            )
            ends.append((history.losses, history.step_rows, values_of(params).tolist()))
    assert ends[0] == ends[1]
    assert sum(ends[0][1]) == 2 * len(some)


def test_the_best_is_kept_in_a_file(tmp_path):
    path = tmp_path / "best.npz"
    with synk.session(2):
        step, params = local()
        trainer = synk.Trainer(step, params, EASGD(2, order="turns"))
        trainer.fit(
            X,
            Y,
            batch_size=8,
            epochs=4,
            validation=lambda: [3.0, 1.0, 2.0, 1.5][len(trainer.history)],
            callbacks=[synk.callbacks.Checkpoint(path, best="val_loss")],
            progress=False,
        )
        trainer.load(path)
    assert len(trainer.history) == 2
