"""`Trainer` and training rules on ranks, beside serial training and the simulator."""

import contextlib
import functools
import os
import signal
import threading
import time

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from processes import rank_pids
from pytensor.compile.mode import Mode

import synk
from synk.files import Part
from synk.rules import (
    ASGD,
    EASGD,
    GEM,
    DiLoCo,
    Downpour,
    Gossip,
    LocalSGD,
    Rule,
    simulate,
)

FAST = Mode("py", "fast_compile")  # nothing is compiled to C
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(37, 3))
Y = X @ [1.0, -2.0, 0.5] + 0.1 * RANDOM.normal(size=37)
START = np.array([0.3, 0.1, -0.2, 0.0])
EIGHT = {"batch_size": 8, "progress": False}
"""Steps of 8 rows: five an epoch, the last one of 5."""

each_of_one_and_three = pytest.mark.parametrize("ranks", [1, 3], indirect=True)
on_three_ranks = pytest.mark.parametrize("ranks", [3], indirect=True)


def make(make_function, grad, mu=0.0, **options):
    """Return a step of linear regression, and its parameters: w and b."""
    x, y = pt.matrix("x"), pt.vector("y")
    w, b = pytensor.shared(START[:3].copy(), "w"), pytensor.shared(START[3], "b")
    loss = ((x @ w + b - y) ** 2).mean()
    updates = synk.updates.momentum(grad(loss, [w, b]), [w, b], 0.05, mu)
    return make_function([x, y], loss, updates=updates, mode=FAST, **options), [w, b]


made_once = functools.cache(make)


def anew(step, params):
    """Return a step and its parameters, with all variables as at first."""
    for var in step.get_shared():
        var.set_value(np.zeros_like(var.get_value()))
    params[0].set_value(START[:3]), params[1].set_value(START[3])
    return step, params


def local(mu=0.0):
    return anew(*made_once(synk.function, pytensor.grad, mu, local=True))


def exact(mu=0.0):
    return anew(*made_once(synk.function, pytensor.grad, mu))


def plain(mu=0.0):
    return anew(*made_once(pytensor.function, pytensor.grad, mu))


def flat(values):
    return np.concatenate([np.ravel(value) for value in values])


def values_of(params):
    return flat([param.get_value() for param in params])


def rows_of_step(k):
    """Return the rows of a step, of epochs in order."""
    return np.arange(37)[8 * (k % 5) : 8 * (k % 5) + 8]


def serial(epochs):
    """Return the losses and the parameters of the serial loop."""
    step, params = plain()
    batches = [rows_of_step(k) for k in range(5 * epochs)]
    return [step(X[batch], Y[batch]) for batch in batches], values_of(params)


def simulated(rule, n, epochs, schedule=None, mu=0.0):
    """Return a simulation that makes the very steps of the ranks of a trainer."""
    grads, params = plain(mu)
    variables = [*params, *(var for var in grads.get_shared() if var not in params)]
    kept = {}

    def mine(rank, k):
        return np.array_split(rows_of_step(k), n)[rank]

    def step(w, rank, k):
        state = kept.get(rank, [np.zeros_like(v.get_value()) for v in variables[2:]])
        for var, value in zip(variables, [w[:3], w[3], *state], strict=True):
            var.set_value(value)
        grads(X[mine(rank, k)], Y[mine(rank, k)])
        kept[rank] = [var.get_value() for var in variables[2:]]
        return values_of(params)

    steps, rows = (
        5 * epochs if schedule is None else schedule,
        lambda *at: len(mine(*at)),
    )
    return simulate(rule, step, steps, n, START, rows=rows)


# -- the numbers


@each_of_one_and_three
def test_exact_training_and_local_sgd_of_one_step_are_the_serial_loop(ranks):
    losses, expected = serial(3)
    for rule in (None, LocalSGD(every=1)):
        step, params = exact() if rule is None else local()
        trainer = synk.Trainer(step, params, rule, shuffle=False)
        history = trainer.fit(X, Y, **EIGHT, epochs=3)
        np.testing.assert_allclose(values_of(params), expected, rtol=1e-10)
        assert len(history) == 3
        assert history["step"] == [5, 10, 15]
        if rule is None:
            np.testing.assert_allclose(history.losses, losses, rtol=1e-10)
        else:
            np.testing.assert_allclose(flat(trainer.centre), expected, rtol=1e-10)


class Halfway(Rule):
    """A rule of the script's own, with an Op and a state that no other rule has."""

    def start(self, w):
        worker, centre = super().start(w)
        return worker | {"half": np.full_like(w, 0.5)}, centre

    def give(self, worker, centre, group):
        d = worker["half"] * pt.tanh(worker["w"] - centre["c"])
        return {"w": worker["w"] - d}, d / group.n

    def move(self, centre, given):
        return {"c": centre["c"] + given}


RULES = [
    LocalSGD(3, after=2),
    EASGD(2),
    GEM(1, 0.5),
    DiLoCo(4, delay=2),  # has given at the end of an epoch, and not yet taken
    Halfway(2),
    EASGD(2, order="turns"),
    ASGD(2, order="turns"),
    Downpour(2, "adam", 0.02, order="turns"),
    DiLoCo(4, fragments=2, delay=1, order="turns"),
    Gossip(0.5, seed=2, order="turns"),
]
"""Each rule, and those of each order that differ in what they exchange."""


@on_three_ranks
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_ranks_are_the_simulator_and_go_on_from_a_file_bit_by_bit(
    rule, ranks, tmp_path
):
    """Five steps an epoch: rounds are cut in their midst. Velocities come along."""
    path = tmp_path / "saved.npz"
    ends = []
    for loads in (False, True):
        step, params = local(mu=0.9)
        trainer = synk.Trainer(step, params, rule, seed=3, shuffle=False)
        if loads:
            trainer.load(path)
        else:
            trainer.fit(X, Y, **EIGHT)
            trainer.save(path)
            trainer.save(path)  # which changes nothing
        trainer.fit(X, Y, **EIGHT, epochs=2)
        assert len(trainer.history) == 3
        values = [values_of(params), flat(trainer.average())]
        if rule.has_centre:
            values.append(flat(trainer.centre))
        else:
            assert not hasattr(trainer, "centre")
        ends.append((trainer.history.losses, [v.tobytes() for v in values]))
        for rank in range(ranks):
            for var in params:  # equal on all ranks afterwards
                found = synk.get_value(rank, var)
                assert found.tobytes() == var.get_value().tobytes()
    assert ends[0] == ends[1]
    expected = simulated(rule, ranks, 3, mu=0.9)
    if rule.has_centre:
        assert values[0].tobytes() == expected.result().tobytes()
        assert values[2].tobytes() == expected.centre.tobytes()
    np.testing.assert_allclose(values[1], expected.average(), rtol=1e-13)


def as_schedule(exchanges, n, steps):
    """Return whose steps came when, so that exchanges come in their order."""
    made = [0] * n
    for exchange in exchanges:
        for _ in range(exchange.step - made[exchange.rank]):
            yield exchange.rank
        made[exchange.rank] = exchange.step
    for rank in range(n):
        yield from [rank] * (steps - made[rank])


FREE = [EASGD(2, order="free"), Downpour(2, "adam", 0.02, order="free")]


@on_three_ranks
@pytest.mark.parametrize("rule", FREE, ids=repr)
def test_a_free_run_is_replayed_in_its_order(rule, ranks):
    step, params = local()
    trainer = synk.Trainer(step, params, rule, shuffle=False)
    exchanges = []
    for _ in range(3):
        history = trainer.fit(X, Y, **EIGHT)
        exchanges += trainer.exchanges
        staleness = [exchange.staleness for exchange in trainer.exchanges]
        assert history["staleness"][-1] == pytest.approx(np.mean(staleness))
    assert len(exchanges) == sum(bool(rule.due(k + 1)) for k in range(15)) * 3
    schedule = list(as_schedule(exchanges, 3, 15))
    expected = simulated(rule, 3, 3, schedule)
    assert exchanges == expected.exchanges
    np.testing.assert_allclose(
        flat(trainer.centre), expected.centre, rtol=1e-12, atol=1e-13
    )


def counting(rows):
    """Return a trainer that notes in which step each of so many rows was."""
    x, now = pt.matrix("x"), pytensor.shared(1.0, "now")
    seen = pytensor.shared(np.zeros(rows), "seen")
    updates = {seen: seen + now * x.sum(axis=0), now: now + 1}
    return synk.function([x], x.sum(), updates=updates, mode=FAST), seen


def test_an_epoch_has_every_row_once_in_an_order_of_seed_and_epoch(two_ranks):
    found = {}
    for rows, batch_size in ((1, 8), (7, 1), (37, 8), (37, 100)):
        step, seen = counting(rows)
        trainer = synk.Trainer(step, [seen])
        trainer.fit(np.eye(rows), batch_size=batch_size, progress=False)
        sizes = np.bincount(seen.get_value().astype(int))[1:]
        assert sizes.tolist() == trainer.history.step_rows
        assert sizes.sum() == rows
        assert set(sizes[:-1]) <= {batch_size}
    step, seen = counting(37)
    for seed in (0, 0, 1):
        trainer, orders = synk.Trainer(step, [seen], seed=seed), []
        for _ in range(2):
            before = seen.get_value()
            trainer.fit(np.eye(37), **EIGHT)
            steps = seen.get_value() - before
            orders.append((steps - steps.min()).tolist())
        assert orders[0] != orders[1]
        assert found.setdefault(seed, orders) == orders
    assert found[0] != found[1]


def test_validation_sees_the_centre_and_disturbs_no_worker(two_ranks):
    x, y = pt.matrix("x"), pt.vector("y")
    ends, seen = [], []
    for validates in (False, True):
        step, params = local()
        w, b = params
        error = synk.function([x, y], ((x @ w + b - y) ** 2).mean(), mode=FAST)
        trainer = synk.Trainer(step, params, EASGD(2, order="turns"))

        def look(trainer, numbers, params=params):
            np.testing.assert_array_equal(values_of(params), flat(trainer.centre))
            seen.append(numbers["val_loss"])

        how = {"validation": (error, X, Y), "callbacks": [look]} if validates else {}
        history = trainer.fit(X, Y, **EIGHT, epochs=3, **how)
        ends.append(values_of(params))
    np.testing.assert_array_equal(*ends)
    assert history["val_loss"] == seen
    expected = np.mean((X @ ends[1][:3] + ends[1][3] - Y) ** 2)
    np.testing.assert_allclose(seen[-1], expected, rtol=1e-10)


def test_what_the_script_sets_is_what_all_workers_begin_with(two_ranks):
    step, params = local()
    first, other = (
        synk.Trainer(step, params, EASGD(2, order="turns"), shuffle=False)
        for _ in range(2)
    )
    first.fit(X, Y, **EIGHT, epochs=2)
    ends = []
    for trainer in (first, other):
        params[0].set_value(START[:3]), params[1].set_value(START[3])
        trainer.fit(X, Y, **EIGHT)
        assert str(synk.state(params[0])).startswith("replicated")
        ends.append(values_of(params))
    np.testing.assert_array_equal(*ends)


@pytest.mark.parametrize("rule", [None, LocalSGD(2)], ids=repr)
def test_rows_that_are_chosen_are_trained_on_as_if_there_were_no_others(
    rule, two_ranks
):
    some = np.flatnonzero(Y > 0)
    ends = []
    for chosen, data in ((Y > 0, (X, Y)), (None, (X[some], Y[some]))):
        step, params = (exact if rule is None else local)(mu=0.9)
        trainer = synk.Trainer(step, params, rule)
        history = trainer.fit(*data, **EIGHT, epochs=2, rows=chosen)
        ends.append((history.losses, history.step_rows, values_of(params).tolist()))
    assert ends[0] == ends[1]
    assert sum(ends[0][1]) == 2 * len(some)


# -- what does not fit


def test_a_step_that_does_not_fit_its_rule_is_refused(two_ranks):
    with pytest.raises(ValueError, match=r"is exact training, and EASGD\("):
        synk.Trainer(*exact(), EASGD(2))
    step, params = make(synk.function, synk.grad, local=True)
    with pytest.raises(ValueError, match="reduces values of all ranks"):
        synk.Trainer(step, params, EASGD(2))
    with pytest.raises(ValueError, match="does not update other"):
        synk.Trainer(step, [pytensor.shared(0.0, "other")])
    x = pt.vector("x")
    v, w = pytensor.shared(np.float32(0), "v"), pytensor.shared(0.0, "w")
    updates = {v: v + 1, w: w + 1}
    step = synk.function([x], x.sum(), updates=updates, local=True, mode=FAST)
    with pytest.raises(TypeError, match="these are float32, float64"):
        synk.Trainer(step, [v, w], EASGD(1)).fit(X[:, 0], **EIGHT)


# -- free orders


@on_three_ranks
@pytest.mark.parametrize(
    "rule", [EASGD(1, order="free"), Gossip(0.3, seed=1)], ids=repr
)
def test_free_workers_keep_the_sum_that_their_rule_keeps(rule, ranks):
    """Once they are apart they make no more steps: what moves is exchanged."""
    x, size = pt.vector("x"), 40_000
    v, w = pytensor.shared(np.zeros((3, 7)), "v"), pytensor.shared(np.zeros(size), "w")
    updates = {w: w + x.sum() * np.linspace(1, 2, size), v: v - x.sum()}
    step = synk.function([x], x.sum(), updates=updates, local=True, mode=FAST)
    trainer = synk.Trainer(step, [v, w], rule, shuffle=False)
    trainer.fit(np.arange(9.0), batch_size=9, progress=False)
    moved = flat([np.full(21, -36.0), 36 * np.linspace(1, 2, size)])
    first = flat(trainer.average())  # of Gossip: by weights that move along
    for _ in range(3):
        trainer.fit(np.zeros(900), batch_size=9, progress=False)
        average = flat(trainer.average())
        if rule.has_centre:
            total = 3 * average + flat(trainer.centre)
            np.testing.assert_allclose(total, moved, atol=1e-10)
        else:
            np.testing.assert_allclose(average, first, atol=1e-12)
            assert len(trainer.exchanges) > 30
    assert not rule.has_centre or (average != first).all()


class Pieces:
    """Rows of the script's own making, each piece of them a launch of the ranks."""

    def __init__(self, *pieces):
        self.pieces = pieces

    def parts(self, epoch, batch_size, *, seed, shuffle):
        for batches in self.pieces:
            if batches is None:
                raise KeyboardInterrupt
            yield Part(batches, (X, Y))


@on_three_ranks
def test_staleness_is_bounded_where_it_is_to_be(ranks):
    step, params = local()
    rule = Downpour(1, learning_rate=0.1, max_staleness=2, order="free")
    trainer = synk.Trainer(step, params, rule)
    batches = [np.arange(k % 20, k % 20 + 4) for k in range(60)]
    pieces = Pieces(batches[:7], batches[7:20], batches[20:60])
    for _ in range(2):
        trainer.fit(pieces, **EIGHT)
        assert len(trainer.exchanges) == 60 * 3
        assert max(found.staleness for found in trainer.exchanges) <= 2


# -- what goes wrong


@contextlib.contextmanager
def signalled(pid, number, seconds):
    timer = threading.Timer(seconds, os.kill, (pid, number))
    timer.start()
    yield
    timer.join()


def all_steps_alike(size):
    """Return a trainer whose step moves all elements of a vector alike."""
    x = pt.vector("x")
    w = pytensor.shared(np.zeros(size), "w")
    moved = 1e-3 * (pt.cos(x.sum()) + 1)
    step = synk.function([x], x.sum(), updates={w: w + moved}, local=True, mode=FAST)
    return step, [w]


def train_on(trainer):
    """Train until something ends it."""
    trainer.fit(np.ones(600), batch_size=6, epochs=100_000, progress=False)


@pytest.mark.parametrize("order", ["together", "turns", "free"])
def test_a_rank_that_is_killed_leaves_a_centre_that_is_whole(order):
    with synk.session(3):
        trainer = synk.Trainer(*all_steps_alike(200_000), EASGD(1, order=order))
        trainer.fit(np.ones(6), batch_size=6, progress=False)
        *_, victim = rank_pids().values()
        killed = signalled(victim, signal.SIGKILL, 0.1)
        with killed, pytest.raises(synk.WorkerDied):
            train_on(trainer)
        (w,) = trainer.centre
        # All elements are equal, but for the blocks that the last exchanges have
        # reached.
        assert np.isfinite(w).all()
        assert len(np.unique(w)) <= 4
        synk.recover()
        trainer.fit(np.ones(6), batch_size=6, progress=False)
        assert np.isfinite(flat(trainer.centre)).all()


@pytest.mark.parametrize(
    "rule", [EASGD(1, order="turns"), Gossip(1, order="turns")], ids=repr
)
def test_a_rank_that_stands_still_is_waited_for_as_long_as_was_said(rule):
    with synk.session(2, timeout=2):
        step, params = local()
        trainer = synk.Trainer(step, params, rule)
        trainer.fit(X, Y, **EIGHT)
        (rank,) = rank_pids().values()
        start = time.perf_counter()
        stopped = signalled(rank, signal.SIGSTOP, 0.2)
        with stopped, pytest.raises(synk.RankTimeout):
            trainer.fit(X, Y, batch_size=1, epochs=10_000, progress=False)
        assert time.perf_counter() - start < 20


def test_an_interrupt_leaves_a_centre_to_go_on_from(two_ranks):
    step, params = all_steps_alike(60_000)
    trainer = synk.Trainer(step, params, EASGD(1, order="free"))
    trainer.fit(np.ones(6), batch_size=6, progress=False)
    interrupted = signalled(os.getpid(), signal.SIGINT, 0.3)
    with interrupted, pytest.raises(KeyboardInterrupt):
        train_on(trainer)
    centre = flat(trainer.centre)
    assert np.isfinite(centre).all()
    trainer.fit(np.ones(6), batch_size=6, progress=False)
    assert abs(flat(trainer.centre) - centre).max() < 0.1


def test_an_interrupt_between_launches_leaves_a_centre_to_go_on_from(two_ranks):
    rule, ends = EASGD(2, order="turns"), []
    step, params = local()
    trainer = synk.Trainer(step, params, rule, shuffle=False)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(Pieces([np.arange(9)] * 3, None), **EIGHT, epochs=2)
    centre = trainer.centre
    for one in (trainer, synk.Trainer(step, params, rule, shuffle=False)):
        one.fit(X, Y, **EIGHT)
        ends.append(values_of(params))
        for var, value in zip(params, centre, strict=True):
            var.set_value(value)
    np.testing.assert_array_equal(*ends)


# -- files


def test_a_file_of_another_training_is_refused(tmp_path):
    path = tmp_path / "saved.npz"
    with synk.session(2):
        step, params = local()
        trainer = synk.Trainer(step, params, EASGD(2))
        trainer.fit(X, Y, **EIGHT)
        trainer.save(path)
        for other, why in (
            (synk.Trainer(step, params, EASGD(3)), r"the rule EASGD\(every=2"),
            (synk.Trainer(step, params, EASGD(2), seed=1), "the seed 0"),
        ):
            with pytest.raises(synk.CheckpointError, match=why):
                other.load(path)
        synk.save(tmp_path / "other.npz", params)
        with pytest.raises(synk.CheckpointError):
            trainer.load(tmp_path / "other.npz")
    why = r"of 2 ranks, and there are 1, .*: by EASGD\(.*\) each rank has parameters"
    with synk.session(1), pytest.raises(synk.CheckpointError, match=why):
        trainer.load(path)


def drawing(local=False):
    """Return a step that draws numbers, for each row and for all."""
    x, w = pt.vector("x"), pytensor.shared(np.zeros(3), "w")
    stream = pytensor.shared(np.random.default_rng(1), "stream")
    after, noise = pt.random.normal(size=3, rng=stream).owner.outputs
    after, of_row = pt.random.normal(size=x.shape, rng=after).owner.outputs
    updates = {w: w + noise * (x + of_row).mean(), stream: after}
    return synk.function([x], w.sum(), updates=updates, local=local, mode=FAST), [w]


@pytest.mark.parametrize("rule", [None, LocalSGD(3)], ids=repr)
def test_in_a_new_session_random_streams_and_batches_go_on_from_a_file(rule, tmp_path):
    ends = []
    for loads in (False, True):
        with synk.session(2):
            trainer = synk.Trainer(*drawing(local=rule is not None), rule)
            if loads:
                trainer.load(tmp_path / "saved.npz")
            else:
                trainer.fit(Y, **EIGHT)
                trainer.save(tmp_path / "saved.npz")
            trainer.fit(Y, **EIGHT)
            values = [synk.get_value(rank, trainer.step.updated[0]) for rank in (0, 1)]
            ends.append((trainer.history.losses, flat(values).tobytes()))
    assert ends[0] == ends[1]


def test_exact_training_goes_on_from_a_file_on_another_number_of_ranks(tmp_path):
    """With what a stream draws for all: its state on rank 0 is the file's."""
    ends = []
    for ranks in (2, 3, 1):
        with synk.session(ranks):
            x, y = pt.matrix("x"), pt.vector("y")
            w = pytensor.shared(START[:3].copy(), "w")
            stream = pytensor.shared(np.random.default_rng(1), "stream")
            after, noise = pt.random.normal(size=3, rng=stream).owner.outputs
            loss = ((x @ w - y) ** 2).mean()
            updates = synk.updates.momentum(pytensor.grad(loss, [w]), [w], 0.05, 0.9)
            updates[w], updates[stream] = updates[w] + 0.01 * noise, after
            step = synk.function([x, y], loss, updates=updates, mode=FAST)
            trainer = synk.Trainer(step, [w], seed=3)
            if ranks == 2:
                trainer.fit(X, Y, **EIGHT)
                trainer.save(tmp_path / "saved.npz")
            else:
                trainer.load(tmp_path / "saved.npz")
            history = trainer.fit(X, Y, **EIGHT, epochs=2)
            ends.append([synk.get_value(rank, w) for rank in range(ranks)])
        assert history["step"] == [5, 10, 15]
    for of_rank in (*ends[1], *ends[2]):
        np.testing.assert_allclose(of_rank, ends[0][0], rtol=1e-10)


def test_values_of_each_ranks_own_are_not_those_of_another_number_of_ranks(tmp_path):
    def started():
        x, w = pt.vector("x"), pytensor.shared(0.0, "w")
        own = pytensor.shared(0.0, "own")
        updates = [(w, w + x.mean()), (own, own + x.sum(), None)]
        step = synk.function([x], x.mean(), updates=updates, mode=FAST)
        return synk.Trainer(step, [w])

    path = tmp_path / "saved.npz"
    with synk.session(2):
        trainer = started()
        trainer.fit(Y, **EIGHT)
        trainer.save(path)
        started().load(path)
    why = "there are 3, .*: own was local to each rank"
    with synk.session(3), pytest.raises(synk.CheckpointError, match=why):
        started().load(path)
