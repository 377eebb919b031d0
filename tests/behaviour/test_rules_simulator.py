"""Training rules under the simulator: closed forms, replays, predicted times."""

import itertools
import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from synk.rules import (
    ASGD,
    EASGD,
    GEM,
    Costs,
    DiLoCo,
    Downpour,
    Gossip,
    LocalSGD,
    ParameterAveraging,
    predict,
    random_turns,
    simulate,
)

PURE = "FAST_COMPILE"  # numpy's own arithmetic, and nothing to compile
RULES = {
    "averaging": lambda order: ParameterAveraging(order=order),
    "local": lambda order: LocalSGD(3, order=order),
    "post-local": lambda order: LocalSGD(3, after=4, order=order),
    "easgd": lambda order: EASGD(2, order=order),
    "asgd": lambda order: ASGD(2, order=order),
    "downpour": lambda order: Downpour(2, learning_rate=0.05, order=order),
    "downpour, adam": lambda order: Downpour(2, "adam", 0.05, order=order),
    "gem": lambda order: GEM(2, order=order),
    "gossip": lambda order: Gossip(p=0.5, order=order),
    "diloco": lambda order: DiLoCo(2, order=order),
    "streaming": lambda order: DiLoCo(4, fragments=2, delay=1, order=order),
}
ORDERS = {"averaging": ("together",), "local": ("together",)}
ORDERS |= {"post-local": ("together",), "gossip": ("free", "turns")}
EVERY = [
    pytest.param(name, order, id=f"{name}, {order}")
    for name in RULES
    for order in ORDERS.get(name, ("together", "turns", "free"))
]


def run(rule, step, schedule, workers, start, **options):
    options.setdefault("mode", PURE)
    return simulate(rule, step, schedule, workers, np.array(start, float), **options)


def towards(targets, lr=0.1, h=1.0):
    """Return plain SGD's step on h * (w - target)**2 / 2, with a target for each."""
    targets = np.asarray(targets, float)

    def step(w, rank, k):
        return w - lr * h * (w - targets[rank])

    return step


def still(w, rank, k):
    return w


def close(found, expected, tolerance=1e-12):
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


# -- what must hold for all of them


@pytest.mark.parametrize(("name", "order"), EVERY)
def test_without_steps_and_from_equal_starts_nothing_moves(name, order):
    """Synchronous EASGD of mpi_learn added up the workers themselves, and grew."""
    start = np.random.default_rng(0).normal(size=7)
    for workers in (1, 3):
        found = run(RULES[name](order), still, 12, workers, start)
        for worker in found.workers:
            close(worker["w"], start, 1e-15)
        close(found.average(), start, 1e-15)
        if name != "gossip":
            assert found.exchanges
            close(found.centre, start, 1e-15)


@pytest.mark.parametrize(("name", "order"), EVERY)
def test_a_simulation_is_repeated_bit_by_bit_and_finds_what_all_are_drawn_to(
    name, order
):
    target = np.float32(2)

    def step(w, rank, k):
        return w - np.float32(0.3) * (w - target)

    ends = []
    # GEM's steps are scaled by what others do: see below.
    for steps in (9, 9, *[300] * (name != "gem")):
        start = np.linspace(-1, 1, 6, dtype="float32")
        found = simulate(RULES[name](order), step, steps, 3, start, mode=PURE)
        values = [value for worker in found.workers for value in worker.values()]
        assert {value.dtype.name for value in values} == {"float32"}
        ends.append([value.tobytes() for value in values])
    assert ends[0] == ends[1]
    if name != "gem":
        result = found.average() if name == "gossip" else found.centre
        close(result, np.full(6, 2.0), 1e-2)


def test_orders_and_numbers_that_a_rule_cannot_have_are_refused():
    few = Downpour(max_staleness=1, order="turns")
    for make, why in (
        (lambda: LocalSGD(3, order="free"), "order must be 'together', got 'free'"),
        (lambda: Gossip(order="together"), "'free' or 'turns', got 'together'"),
        (lambda: EASGD(0), "at least 1, got 0"),
        (lambda: DiLoCo(4, fragments=5), "every=4 steps"),
        (lambda: DiLoCo(4, delay=4), "every=4 steps"),
        (lambda: Downpour(1, "newton"), "no optimiser 'newton'"),
        (lambda: run(EASGD(1), still, [0, 1], 2, [0.0]), "is the number of steps"),
        (lambda: run(few, still, 1, 3, [0.0]), "=1 with 3 workers.*2 at least"),
    ):
        with pytest.raises(ValueError, match=why):
            make()


# -- parameter averaging and local SGD


@pytest.mark.parametrize("mu", [0.0, 0.9])
@pytest.mark.parametrize("make", [ParameterAveraging, lambda: LocalSGD(1)])
def test_an_average_after_each_step_is_serial_training(make, mu):
    """With a momentum of each worker's own, too: it is linear in the gradients."""
    random = np.random.default_rng(0)
    a, targets = random.uniform(0.5, 2, (3, 4)), random.normal(size=(3, 4))
    rows = [5, 2, 3]
    lr, velocities, weights = 0.1, np.zeros((3, 4)), np.array(rows) / 10

    def step(w, rank, k):
        velocities[rank] = mu * velocities[rank] + a[rank] * (w - targets[rank])
        return w - lr * velocities[rank]

    found = run(make(), step, 20, 3, np.ones(4), rows=lambda rank, k: rows[rank])
    w, v = np.ones(4), np.zeros(4)
    for _ in range(20):
        v = mu * v + weights @ (a * (w - targets))
        w = w - lr * v
    if mu:  # velocities are each worker's own: they are weighed as the gradients were
        close(weights @ velocities, v)
    for worker in found.workers:
        close(worker["w"], w)


@pytest.mark.parametrize(
    "rule", [LocalSGD(1), LocalSGD(8), ASGD(1), ASGD(3, order="turns")], ids=repr
)
def test_one_worker_is_its_optimiser(rule):
    def with_momentum(velocity):
        def step(w, rank, k):
            velocity[:] = 0.9 * velocity - 0.1 * (w - 1)
            return w + velocity

        return step

    found = run(rule, with_momentum(np.zeros(2)), 24, 1, [0.0, 3.0])
    w, step = np.array([0.0, 3.0]), with_momentum(np.zeros(2))
    for k in range(24):
        w = step(w, 0, k)
    close(found.workers[0]["w"], w)
    close(found.centre, w)
    if isinstance(rule, LocalSGD):
        assert found.workers[0]["w"].tobytes() == w.tobytes()


def test_local_sgd_on_several_hessians_drifts_as_far_as_it_must():
    """Its fixed point is not the minimum: it solves another equation."""
    random = np.random.default_rng(2)
    a, c, lr, every = random.uniform(0.5, 3, (3, 4)), random.normal(size=(3, 4)), 0.1, 5
    step = lambda w, i, k: w - lr * a[i] * (w - c[i])  # noqa: E731
    found = run(LocalSGD(every), step, 4000, 3, np.zeros(4))
    pull = 1 - (1 - lr * a) ** every
    close(found.centre, (pull * c).sum(0) / pull.sum(0))
    assert abs(found.centre - (a * c).sum(0) / a.sum(0)).max() > 1e-3


def test_a_round_is_weighed_by_its_rows_and_not_by_those_of_its_last_step():
    rows = {(0, 0): 4, (0, 1): 1, (1, 0): 2, (1, 1): 3}
    step, of = (lambda w, rank, k: w + rank), (lambda rank, k: rows[rank, k])
    found = run(LocalSGD(2), step, 2, 2, [0.0], rows=of)
    close(found.centre, [(5 * 0 + 5 * 2) / 10])


def test_post_local_sgd_meets_after_each_step_at_first():
    found = run(LocalSGD(4, after=3), still, 12, 2, [0.0])
    assert [exchange.step for exchange in found.exchanges] == [1, 2, 3, 7, 11]


# -- elastic averaging


@pytest.mark.parametrize("order", ["together", "turns"])
def test_easgd_keeps_the_sum_of_workers_and_centre(order):
    moved = itertools.count()

    def once(w, rank, k):
        return w + rank + 1 if next(moved) < 4 else w

    found = run(EASGD(1, order=order), once, 50, 4, np.zeros(3))
    close(found.centre + sum(w["w"] for w in found.workers), np.full(3, 10.0))
    close(found.centre, np.full(3, 2.0), 1e-6)  # where all come to rest


@pytest.mark.parametrize(
    ("n", "alpha", "order"),
    [
        (1, 0.3, "together"),
        (1, 0.5, "turns"),  # meets half way
        (1, 1.0, "turns"),  # swaps
        (2, 0.0, "turns"),  # is plain SGD
        (3, 0.3, "turns"),
    ],
)
def test_easgd_is_a_product_of_matrices(n, alpha, order):
    rule, e = EASGD(1, n * alpha, order=order), 0.2
    found = run(rule, towards([[0.0]] * n, e), 10, n, [1.0])
    each_round = np.eye(n + 1)
    for i in range(n):
        one = np.eye(n + 1)
        one[i, i], one[i, n] = (1 - alpha) * (1 - e), alpha
        one[n, i], one[n, n] = alpha * (1 - e), 1 - alpha
        each_round = one @ each_round
    ends = np.linalg.matrix_power(each_round, 10) @ np.ones(n + 1)
    close([*[w["w"][0] for w in found.workers], found.centre[0]], ends)


def test_easgd_warns_where_its_centre_would_not_settle():
    """Platoon's 0.5 for each worker diverges from four of them on."""
    rule = EASGD(1, beta=0.5 * 4)
    with pytest.warns(UserWarning, match=r"alpha \* \(1 \+ n\) is 2.5"):
        grows = run(rule, lambda w, i, k: w + (k == 0) * i, 40, 4, [0.0])
    assert abs(grows.centre - np.mean([w["w"] for w in grows.workers])) > 1e3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(EASGD(1), still, 1, 64, [0.0])


# -- asynchronous SGD


def test_asgd_in_any_fixed_order_is_replayed():
    schedule = list(random_turns(3, 8, seed=4))
    step = towards([[1.0], [2.0], [3.0]])
    found = run(ASGD(2, order="free"), step, schedule, 3, [0.0])
    c, w, o, steps = 0.0, [0.0] * 3, [0.0] * 3, [0] * 3
    for rank in schedule:
        w[rank] -= 0.1 * (w[rank] - (1, 2, 3)[rank])
        steps[rank] += 1
        if steps[rank] % 2 == 0:
            c += w[rank] - o[rank]
            w[rank] = o[rank] = c
    close(found.centre, [c])
    close([worker["w"][0] for worker in found.workers], w)


# -- Downpour


@pytest.mark.parametrize("n", [1, 2, 4])
def test_downpour_in_turns_follows_gradients_that_are_old(n):
    lr, h, rounds = 0.2, 1.5, 12
    step = towards([[0.0]] * n, lr=1.0, h=h)
    found = run(Downpour(learning_rate=lr, order="turns"), step, rounds, n, [1.0])
    w = [1.0]
    for t in range(n * rounds):
        w.append(w[t] - lr * h * w[max(0, t - n + 1)])
    close(found.centre, w[-1:])
    assert {e.staleness for e in found.exchanges[n:]} == {n - 1}


@pytest.mark.parametrize("n", [1, 2, 8])
@pytest.mark.parametrize("factor", [0.97, 1.03])
def test_downpour_is_stable_as_far_as_its_delay_allows(n, factor):
    bound = 2 * np.sin(np.pi / (2 * (2 * (n - 1) + 1)))
    rule = Downpour(learning_rate=factor * bound, order="turns")
    found = run(rule, towards([[0.0]] * n, lr=1.0), 400, n, [1.0])
    assert (abs(found.centre[0]) < 1) == (factor < 1)


def test_downpour_together_adds_gradients():
    lr, n = 0.05, 4
    step = towards([[1.0], [2.0], [3.0], [4.0]], lr=1.0)
    found = run(Downpour(learning_rate=lr), step, 15, n, [0.0])
    close(found.centre, [2.5 * (1 - (1 - lr * n) ** 15)])


@pytest.mark.parametrize("name", synk.updates.__all__)
def test_every_optimiser_at_the_centre_is_that_of_updates(name):
    w = pytensor.shared(np.array([1.0, -2.0]), name="w")
    gradient = pytensor.grad((pt.cosh(w) * [0.5, 1.5]).sum(), w)
    updates = getattr(synk.updates, name)([gradient], [w], learning_rate=0.1)
    plain = pytensor.function([], updates=updates, mode=PURE)
    step = lambda w, rank, k: w - np.sinh(w) * [0.5, 1.5]  # noqa: E731
    found = run(Downpour(1, name, learning_rate=0.1), step, 25, 1, [1.0, -2.0])
    for _ in range(25):
        plain()
    close(found.centre, w.get_value(), 1e-10)


# -- gradient energy matching


@pytest.mark.parametrize(("kappa", "share"), [(2.0, 1.0), (1.0, 0.5)])
def test_gem_of_one_worker_has_the_gain_of_momentum(kappa, share):
    """Sizes of steps alternate; on average they are kappa / 2 of momentum's."""
    mu, lr, g, steps = 0.7, 0.01, 3.0, 41
    rule = GEM(1, lr, mu, kappa, epsilon=1e-300)
    found = run(rule, lambda w, rank, k: w - g, 0, 1, [0.0])
    ways, m, last, sizes = [0.0], 0.0, 0.0, []
    for _ in range(steps):
        ways.append(found.run(1).centre[0])
        m = mu * m + lr * g
        last = max(0.0, kappa * m - last)
        sizes.append(last)
    close(-np.diff(ways), sizes)
    mean = np.mean(sizes[-20:])
    close(mean, share * lr * g / (1 - mu), 2e-3)


def test_gem_is_clipped():
    found = run(GEM(1, 0.01, 0.99, 2.0), lambda w, rank, k: w - 1.0, 300, 1, [0.0])
    assert -found.centre[0] <= 300 * 0.01 * 5
    assert GEM(1).clip == 5


def test_the_first_steps_of_gem():
    """Of a centre that rests, of one that is far from 0, and where u is -epsilon."""
    rests = GEM(1, 0.1, 0.5, 1.5, order="turns", epsilon=1e-300)
    found = run(rests, lambda w, rank, k: w - (rank == 0), [0, 1], 2, [0.0])
    close(found.centre, [-0.15])  # momentum times kappa
    found = run(GEM(1, 0.1), lambda w, rank, k: w - 1.0, 1, 1, [100.0])
    close(found.centre, [100 - 0.2])
    small = GEM(1, 1.0, epsilon=1e-12)
    found = run(small, lambda w, rank, k: w + [0.0, -1e-12], 3, 1, [0.0, 0.0])
    assert np.isfinite(found.centre).all()
    assert found.centre[0] == 0


# -- gossip


@pytest.mark.parametrize("order", ["free", "turns"])
@pytest.mark.parametrize("workers", [1, 5])
def test_gossip_keeps_what_its_workers_weigh(order, workers):
    """Together with what is on its way, which `average` counts, too."""
    starts = iter(range(workers))
    step = lambda w, rank, k: w + next(starts) if k == 0 else w  # noqa: E731
    schedule = [*range(workers), *random_turns(workers, 60, seed=1)]
    rule = Gossip(0.4, seed=3, order=order)
    found = run(rule, step, schedule if order == "free" else 60, workers, [0.0, 1.0])
    mean = (workers - 1) / 2
    close(found.average(), [mean, 1 + mean])
    assert 0 < sum(found.weights) < 1 + 1e-12
    assert bool(found.exchanges) == (workers > 1)


def test_gossip_comes_to_the_mean():
    step = lambda w, i, k: w + i * (k == 0)  # noqa: E731
    found = run(Gossip(1.0, order="turns"), step, 300, 4, [0.0])
    close([w["w"][0] for w in found.workers], [1.5] * 4, 1e-9)


def test_gossip_of_two_that_always_send_is_replayed():
    step = towards([[1.0], [2.0]])
    found = run(Gossip(1.0, order="turns"), step, 9, 2, [0.0])
    w, a, mail = [0.0, 0.0], [0.5, 0.5], [None, None]
    for t in range(18):
        i = t % 2
        w[i] -= 0.1 * (w[i] - (1, 2)[i])
        if mail[i] is not None:
            sent, weight = mail[i]
            w[i] = (a[i] * w[i] + weight * sent) / (a[i] + weight)
            a[i] += weight
        a[i] /= 2
        mail[1 - i] = w[i], a[i]
    close([worker["w"][0] for worker in found.workers], w)
    close(found.weights, a)


def test_each_worker_gossips_by_a_stream_of_its_own():
    """With one seed for all, all sent at once, to the same."""
    rule = Gossip(0.5, seed=7)
    drawn = [[*itertools.islice(rule.destinations(i, 4), 400)] for i in range(4)]
    assert all(set(to) - {None} == {0, 1, 2, 3} - {i} for i, to in enumerate(drawn))
    sends = np.array([[to is not None for to in of] for of in drawn])
    assert abs(np.corrcoef(sends) - np.eye(4)).max() < 0.2
    assert abs(sends.mean() - 0.5) < 0.05


# -- DiLoCo


def test_diloco_of_one_inner_step_is_nesterov():
    lr, eta, mu = 0.1, 0.7, 0.9
    w = pytensor.shared(np.zeros(1), name="w")
    loss = 0.5 * ((w - 2.0) ** 2).sum()
    gradients = [pytensor.grad(loss, w)]
    updates = synk.updates.nesterov_momentum(gradients, [w], eta * lr, mu)
    plain = pytensor.function([], updates=updates, mode=PURE)
    for _ in range(30):
        plain()
    step = towards([[1.0], [3.0]], lr=lr)
    found = run(DiLoCo(1, eta, mu), step, 30, 2, [0.0])
    close(found.centre, w.get_value())
    for worker in found.workers:
        close(worker["w"], found.centre)


def test_fragments_are_exchanged_once_in_a_round_each_at_its_step():
    found = run(DiLoCo(6, fragments=3), still, 13, 2, np.zeros(7))
    assert [(e.step, e.fragment) for e in found.exchanges] == [
        *[(2, 2), (4, 1), (6, 0)],
        *[(8, 2), (10, 1), (12, 0)],
    ]


def test_a_delayed_exchange_is_replayed():
    every, delay, mixing, eta = 4, 2, 0.5, 0.7
    rule = DiLoCo(every, eta, 0.0, delay=delay)
    assert rule.mixing == mixing
    step = towards([[1.0], [3.0]])
    found = run(rule, step, 11, 2, [0.0])
    w, theta = np.zeros(2), 0.0
    for t in range(1, 12):
        w -= 0.1 * (w - [1, 3])
        if t % every == 0:
            theta -= eta * np.mean(theta - w)
        if t > every and t % every == delay:
            w = mixing * w + (1 - mixing) * theta
    close(found.centre, [theta])
    close([worker["w"][0] for worker in found.workers], w)


# -- predicted times

START = np.ones(3)


def halfway(w, rank, k):
    return w - 0.01 * (w - rank)


def size(w):
    return float(np.abs(w).sum())


def told(rule, steps, workers, costs, **options):
    options = {"loss": size, "mode": "FAST_COMPILE", **options}
    return predict(rule, halfway, steps, workers, START, costs, **options)


def speeds(costs, workers):
    """Return what a step of each worker takes: the one draw that is documented."""
    drawn = np.random.default_rng(costs.seed).standard_normal(workers)
    factors = np.exp(costs.spread * drawn)
    return costs.step * factors / factors.mean()


def test_all_that_meet_wait_for_the_slowest():
    costs = Costs(step=2.0, exchange=lambda n: 0.1 * n, spread=0.5, seed=3)
    found = told(LocalSGD(5), 20, 4, costs)
    took = speeds(costs, 4)
    assert took.mean() == pytest.approx(2.0)
    assert found.seconds[-1] == pytest.approx(20 * took.max() + 4 * 0.4)
    waited = (20 * (took.max() - took)).sum()
    assert found.waiting == pytest.approx(waited / (4 * found.seconds[-1]))
    assert (found.steps, found.exchanges, found.staleness) == (80, 4, 0)


def test_who_comes_when_ready_waits_for_nobody():
    costs = Costs(step=1.0, exchange=0.5, busy=0.0, spread=1.0, seed=1)
    found = told(ASGD(2, order="free"), 30, 5, costs)
    assert found.waiting == 0
    # The slowest one is the last.
    assert found.seconds[-1] == pytest.approx(30 * speeds(costs, 5).max() + 15 * 0.5)


@pytest.mark.parametrize("order", ["turns", "free"])
def test_a_centre_that_is_always_busy_sets_the_pace(order):
    costs = Costs(step=0.01, exchange=1.0)
    found = told(EASGD(1, order=order), 50, 8, costs)
    assert found.seconds[-1] == pytest.approx(8 * 50, rel=0.01)
    assert found.waiting == pytest.approx(1 - 1 / 8, rel=0.02)
    # The others come once between two exchanges of one; the first have none before.
    others = [min(k, 7) if k < 8 else 7 for k in range(8 * 50)]
    assert found.staleness == pytest.approx(np.mean(others), rel=0.01)


def test_staleness_is_bounded_by_waiting():
    costs = Costs(step=1.0, spread=1.5, seed=2)
    free = told(Downpour(1, order="free"), 40, 6, costs)
    most = told(Downpour(1, max_staleness=5, order="free"), 40, 6, costs)
    assert free.waiting == 0 < most.waiting
    assert most.staleness <= 5
    assert free.seconds[-1] == pytest.approx(40 * speeds(costs, 6).max())
    assert most.seconds[-1] == pytest.approx(free.seconds[-1])
    assert most.steps == free.steps == 240


@pytest.mark.parametrize(
    "rule",
    [EASGD(2, order="turns"), DiLoCo(4, fragments=2, delay=1), Gossip(order="turns")],
    ids=repr,
)
def test_what_is_computed_is_the_simulators(rule):
    found = told(rule, 12, 3, Costs(1.0, 0.1, spread=0.3))
    plain = simulate(rule, halfway, 12, 3, START, mode="FAST_COMPILE")
    assert found.losses[-1] == size(plain.result())
    assert found.exchanges == len(plain.exchanges)
    assert len(found.losses) == 12


def test_training_ends_at_a_loss():
    def trained(steps, **how):
        step = lambda w, rank, k: 0.5 * w  # noqa: E731
        costs = Costs(step=1.0)
        return predict(LocalSGD(1), step, steps, 2, START, costs, loss=size, **how)

    found = trained(100, until=0.1)
    # 3 / 2**5 is the first that is not more.
    assert found.steps == 2 * 5
    assert found.time_to(0.1) == 5.0
    assert found.time_to(0.75) == 2.0
    assert found.time_to(0.01) == np.inf
    assert trained(7, every=3).seconds == [3.0, 6.0, 7.0]
