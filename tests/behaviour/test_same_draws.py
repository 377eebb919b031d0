"""Random draws for rows: those of the plain function, on any number of ranks."""

import functools
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child
from on_ranks import levels, three_ranks
from pytensor.compile.builders import OpFromGraph
from reference import PY, assert_same, cut
from test_reducing_draws import N, Script, X, assert_stored, draw, row_and_common

import synk

pytestmark = [
    pytest.mark.filterwarnings("ignore:RandomVariable Ops will stop hiding"),
    pytest.mark.filterwarnings("ignore::synk.OversubscriptionWarning"),
    pytest.mark.filterwarnings("ignore::synk.SplitWarning"),
    pytest.mark.usefixtures("scans_in_python"),
]

K = X.shape[1]
R = pt.random
normal, uniform, bernoulli = R.normal, R.uniform, R.bernoulli
CALLS = [(7, 1), (7, 1), (11, 3), (2, 1), (9, 2)]
"""Numbers of rows and of slices: of two rows one of three ranks has none."""


def rows_of(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).uniform(-1, 1, size=(rows, 3))


# -- graphs that draw for rows ---------------------------------------------------------


def by_size(op, *parameters, size=X.shape):
    """Return a case that draws an array of a size, or of the parameters' size."""

    def case(script):
        return [script.draw(op, *parameters, size=size)]

    return case


def one_after_the_other(script):
    """The first skips, the second is passed by drawing, the third is drawn at once."""
    noise = script.draw(normal, X, 0.1)
    kept = script.draw(bernoulli, 0.8, size=X.shape)
    return [noise, kept, script.draw(R.multinomial, 9, [0.2, 0.3, 0.5], size=N)]


def after_a_reduction(script):
    """The last are drawn for all rows in JAX mode, too."""
    far = 10 * script.draw(normal, size=N).max() + 100
    drawn = [script.draw(normal, far, size=(N,)) - far, script.draw(uniform, size=N)]
    return [*drawn, script.draw(R.gamma, 2.0, 1.5, size=X.shape)]


def by_place(script):
    """What JAX draws from a key and a place alone, of either precision."""
    kinds = [normal, uniform, R.gumbel, R.laplace, R.logistic, R.cauchy]
    drawn = [script.draw(kind, 0, 1, size=X.shape) for kind in kinds]
    drawn.append(script.draw(R.exponential, X + 2))
    drawn.append(script.draw(R.binomial, 1, 0.3, size=N))
    drawn.append(script.draw(normal, size=(N, 2), dtype="float32"))
    return [*drawn, script.draw(bernoulli, pt.sigmoid(X))]


def both_from_one_state(script):
    _, other = draw(uniform, 0, 1, rng=script.rng, size=X.shape)
    return [script.draw(normal, size=X.shape), other]


def dropped(script):
    """A step of a net that drops inputs: loss and gradient see one mask."""
    kept = script.draw(bernoulli, 0.75, size=X.shape)
    loss = (((X * kept / 0.75) @ script.w - X[:, 0]) ** 2).mean()
    return script.descend(loss)


def dropped_after_a_bias(script):
    """The size of the mask follows from views of what all ranks have."""
    hidden = X + script.w.reshape((pt.ones((), "int64"), script.w.shape[0]))
    kept = script.draw(bernoulli, pt.sigmoid(X.mean()), size=hidden.shape)
    return script.descend(((hidden * kept) ** 2).mean())


def dropped_in_a_hidden_layer(script):
    """The size of the mask follows from that of weights, which all ranks have."""
    kernel = pytensor.shared(np.linspace(-1, 1, 12).reshape(3, 4), "kernel")
    bias = pytensor.shared(np.linspace(0, 1, 4), "bias")
    hidden = pt.tanh(X @ kernel + bias)
    kept = script.draw(bernoulli, 0.75, size=hidden.shape)
    loss = (((hidden * kept).sum(axis=1) - X @ script.w) ** 2).mean()
    return script.descend(loss)


def augmented(script):
    """Rows shifted by some columns each, and mirrored or not."""
    shift = script.draw(R.integers, 0, 3, size=N)
    places = (pt.arange(K)[None, :] + shift[:, None]) % K
    turned = script.draw(bernoulli, 0.5, size=(N, 1))
    moved = pt.take_along_axis(X, places, axis=1)
    return [pt.switch(turned, moved[:, ::-1], moved)]


def estimated(script):
    """Monte Carlo within rows: the mean of 50 draws for each, and of all."""
    drawn = script.draw(normal, X.sum(axis=1)[:, None], 1, size=(N, 50))
    found = pt.exp(-pt.abs(drawn)).mean(axis=1)
    return [found, found.mean()]


def a_gibbs_chain(script):
    """A chain for each row, in steps that draw twice."""

    def step(state, rng, x):
        rng, z = draw(normal, 0.5 * state, 1.0, rng=rng)
        rng, u = draw(uniform, 0, 1, rng=rng, size=z.shape)
        return z + x * (u < 0.5), rng

    starts = [pt.zeros_like(X), script.rng]
    states, script.after = pytensor.scan(
        *(step, [], starts, [X]), n_steps=4, return_updates=False
    )
    script.updates[script.rng] = script.after
    return [states[-1], script.draw(normal, size=(N,))]


def contrastive_divergence(script):
    """Chains that begin at the rows, as a restricted Boltzmann machine's."""
    weights = pytensor.shared(np.linspace(-1, 1, 15).reshape(3, 5), "weights")

    def step(v, rng, weights):
        rng, h = draw(bernoulli, pt.sigmoid(v @ weights), rng=rng)
        rng, v = draw(bernoulli, pt.sigmoid(h @ weights.T), rng=rng)
        return v.astype("float64"), rng

    states, after = pytensor.scan(
        *(step, [], [X, script.rng], [weights]), n_steps=3, return_updates=False
    )
    script.updates[script.rng] = after
    v = states[-1]
    up, down = pt.sigmoid(X @ weights), pt.sigmoid(v @ weights)
    script.updates[weights] = weights + 0.1 * (X.T @ up - v.T @ down) / N
    return [v]


def loops_for_rows_and_for_all(script):
    """A chain of all beside those of the rows; what follows draws where both end."""

    def step(state, common, rng):
        rng, z = draw(normal, 0.5 * state, 1.0, rng=rng)
        rng, common = draw(normal, 0.5 * common, 1.0, rng=rng)
        return z + common, common, rng

    starts = [pt.zeros_like(X), script.w, script.rng]
    states, commons, script.after = pytensor.scan(
        step, [], starts, n_steps=3, return_updates=False
    )
    script.updates |= {script.rng: script.after, script.w: commons[-1]}
    return [states[-1], script.draw(uniform, size=(2,))]


def above_ops_that_are_placed_as_graphs(script):
    """An Op of a draw itself, and a gradient that adds to one part of a join."""
    x = pt.dmatrix("x")
    centre = OpFromGraph([x], [x - x.mean(axis=0)])
    rows = X * script.draw(bernoulli, 0.75, size=X.shape) + script.w
    joined = pt.concatenate([pt.ones((1, 3)), rows], axis=0)
    chosen = rows[pt.arange(N), pt.argmax(X, axis=1)].sum()
    loss = pt.logsumexp(joined.sum(axis=0)) - chosen
    return [centre(script.draw(normal, size=X.shape)), *script.descend(loss)]


CASES = {
    "uniform": by_size(uniform, 0, 2),
    "normal": by_size(normal, 1, 2),
    "bernoulli": by_size(bernoulli, 0.3),
    "a coin as binomial": by_size(R.binomial, 1, 0.3),
    "categories": by_size(R.categorical, [0.2, 0.3, 0.5], size=N),
    "several for each row": by_size(uniform, size=N * K),
    "rows along the second axis": by_size(normal, size=(K, N)),
    "drawn in passes": by_size(R.betabinom, 10, 1.0, 2.0),
    "locations of rows": by_size(normal, X, 1, size=None),
    "odds of rows": by_size(bernoulli, pt.sigmoid(X), size=None),
    "rates of rows": by_size(R.poisson, pt.exp(X), size=None),
    "shapes of rows": by_size(R.gamma, pt.exp(X[:, :1]), 1, size=(N, 4)),
    **{
        case.__name__.replace("_", " "): case
        for case in (
            *(one_after_the_other, after_a_reduction, row_and_common, by_place),
            *(both_from_one_state, dropped, dropped_after_a_bias, augmented),
            *(dropped_in_a_hidden_layer, estimated, a_gibbs_chain),
            *(contrastive_divergence, loops_for_rows_and_for_all),
            above_ops_that_are_placed_as_graphs,
        )
    },
}
IN_JAX = [("by place", True), ("after a reduction", False), ("a gibbs chain", False)]
"""With what is padded."""


def made(case: str, function, **options: Any):
    """Make a function of a case, of either package; return it and its variables."""
    script = Script()
    outputs = CASES[case](script)
    options = {"mode": PY, "on_unused_input": "ignore", **options}
    f = function([X], outputs, updates=script.updates, **options)
    return f, list(script.updates)


def assert_drawn(got, right):
    for one, other in zip(got, right, strict=True):
        np.testing.assert_allclose(one, other, 1e-13, 1e-13)


def test_ranks_do_not_meet_for_the_size_of_a_draw():
    for case in "dropped", "dropped in a hidden layer":
        f, _ = made(case, synk.function)
        assert not any("max" in ops for ops in levels(f))


def check_draws(f, variables, plain, right, calls=CALLS):
    """In calls, in slices, and where ranks have no rows."""
    for rows, slices in calls:
        value = rows_of(rows)
        assert_drawn(f(value, num_slices=slices), plain(value))
    assert_stored(variables, right)


@three_ranks
@pytest.mark.parametrize("case", CASES)
def test_rows_are_drawn_as_by_the_plain_function(ranks, case):
    check_draws(*made(case, synk.function), *made(case, pytensor.function))


# Numba tosses coins with odds of their own in another way than numpy.
@pytest.mark.parametrize(
    ("case", "mode"),
    [
        ("odds of rows", "NUMBA"),
        pytest.param("one after the other", PY, marks=pytest.mark.slow),
        pytest.param("a gibbs chain", PY, marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_in_numba_rows_are_drawn_as_by_the_plain_function(case, mode):
    """Three are forked with what one compiled; uncut it would run the plain graph."""
    f = made(case, synk.function, mode="NUMBA")
    plain = made(case, pytensor.function, mode=mode)
    for ranks, calls in (1, CALLS[2::2]), (3, CALLS):
        with synk.session(ranks):
            check_draws(*f, *plain, calls)


@pytest.mark.slow
@in_a_child
def test_in_jax_mode_rows_are_drawn_as_on_one_rank():
    """Padded or not: by places in an array, or all on every rank.

    Of one row one of two ranks has none. XLA compiles for each number, on each rank.
    """
    expected, calls = {}, [(5, 2), (1, 1)]
    with synk.session(1):
        for case, _ in IN_JAX:
            f, _ = made(case, synk.function, mode="JAX")
            expected[case] = [f(rows_of(rows)) for rows, _ in calls]
    with synk.session(2):
        for case, pad in IN_JAX:
            f, _ = made(case, synk.function, mode="JAX", pad=pad)
            for (rows, slices), right in zip(calls, expected[case], strict=True):
                got = f(rows_of(rows), num_slices=slices)
                for one, other in zip(got, right, strict=True):
                    rtol = 1e-6 if one.dtype == np.float32 else 1e-12
                    np.testing.assert_allclose(one, other, rtol, 1e-13)


def test_a_script_draws_the_same_on_any_number_of_ranks(tmp_path):
    """After a failure, in runs, and where a checkpoint of other ranks goes on."""
    found = []
    for ranks in (1, 3):
        f, variables = made("dropped", synk.function)
        values, path = rows_of(8), tmp_path / f"{ranks}.npz"
        with synk.session(ranks):
            losses = [f(values)[0]]
            with pytest.raises(ValueError):  # of two columns, and weights of three
                f(np.ones((8, 2)))
            losses += list(f.run([slice(0, 5), slice(1, 3), slice(0, 8)], values)[0])
            synk.save(path, variables)
        f, variables = made("dropped", synk.function)
        with synk.session(4 - ranks):
            synk.load(path, variables)
            losses += [f(values)[0] for _ in range(2)]
            generator, weights = (var.get_value() for var in variables)
        found.append((losses, weights, generator.bit_generator.state))
    (losses, weights, state), other = found
    np.testing.assert_allclose(losses, other[0], 1e-13)
    np.testing.assert_allclose(weights, other[1], 1e-13)
    assert state == other[2]


@three_ranks
def test_a_named_op_and_an_all_reduce_see_the_rows_that_gradients_see(ranks):
    """What is left as it is written draws for its rows as all else does."""
    plain, right = made("dropped", pytensor.function)
    script = Script()
    (loss,) = dropped(script)
    noise = script.draw(normal, size=X.shape)
    outputs = [(loss, "avg"), (noise, "gather"), synk.ops.all_reduce(noise.mean())]
    f = synk.function([X], outputs, updates=script.updates, mode=PY)
    serial = np.random.default_rng(5)
    for rows in (7, 2):
        value = rows_of(rows)
        cost, drawn, mean = f(value)
        np.testing.assert_allclose(cost, plain(value)[0], 1e-13)
        serial.binomial(1, 0.75, size=value.shape)
        expected = serial.normal(size=value.shape)
        np.testing.assert_array_equal(drawn, expected)
        np.testing.assert_allclose(mean, expected.mean(), 1e-13)
        right[0].set_value(serial)  # as the noise leaves it
    np.testing.assert_allclose(script.w.get_value(), right[1].get_value(), 1e-13)


@three_ranks
def test_check_serial_covers_draws_for_rows(ranks):
    for case in ("one after the other", "dropped", "a gibbs chain"):
        f, _ = made(case, synk.function)
        for _ in range(2):
            f(rows_of(7), check="serial")


def test_explain_says_which_draws_a_rank_makes(two_ranks):
    f, _ = made("one after the other", synk.function)
    draws = f.explain().to_dict()["draws"]
    found = {draw["name"]: draw["ranks_draw"] for draw in draws}
    rows, every = "own rows", "all rows"
    assert found == {"normal": every, "bernoulli": rows, "multinomial": every}
    assert "draws those of its rows" in " ".join(str(f.explain()).split())
    g, _ = made("a gibbs chain", synk.function)
    told = {
        (draw["name"], draw["ranks_draw"]) for draw in g.explain().to_dict()["draws"]
    }
    assert told == {("normal", every), ("uniform", rows)}


# -- streams of each rank's own --------------------------------------------------------

KINDS = ["RandomStream", "default_update", "updates", "shared_rng"]
"""In which ways PyTensor has a stream."""


def noisy(kind: str, function=synk.function, **options: Any):
    """Return a function of rows with noise from one kind of stream."""
    generator, updates = np.random.default_rng(3), {}
    if kind == "RandomStream":
        drawn = R.RandomStream(3).normal(0, 1, size=X.shape)
    elif kind == "shared_rng" and hasattr(R, "shared_rng"):
        rng = R.shared_rng(generator)
        updates[rng], drawn = rng.normal(0, 1, size=X.shape)
    else:
        rng = pytensor.shared(generator, "rng")
        after, drawn = draw(normal, 0, 1, rng=rng, size=X.shape)
        if kind == "updates":
            updates[rng] = after
        else:
            rng.default_update = after
    return function([X], drawn + X, updates=updates, mode=PY, **options)


@three_ranks
@pytest.mark.filterwarnings("ignore:RandomStream is deprecated")
@pytest.mark.filterwarnings("ignore:Setting default_update", "ignore::FutureWarning")
def test_each_rank_may_draw_for_its_rows_from_a_stream_of_its_own(ranks):
    """Rank 0 draws the serial numbers of its rows; of all, none comes twice."""
    value = np.zeros((2 * ranks + 1, 3))
    own = len(cut(value, ranks)[0])
    for kind in KINDS:
        serial, plain = noisy(kind), noisy(kind, pytensor.function)
        f, right = noisy(kind, streams="own"), noisy(kind, pytensor.function)
        drawn = []
        for _ in range(3):
            assert_same(serial(value), plain(value), 0)
            drawn.append(f(value))
            assert_same(drawn[-1][:own], right(value[:own]), 0)
        drawn += [f(value, num_slices=2), f(value, num_slices=3)]
        assert len(set(np.concatenate(drawn).ravel())) == 5 * value.size


def own_noise(updates: bool = True):
    """Return a stream, and functions that draw from it on each rank for itself."""
    rng = pytensor.shared(np.random.default_rng(1), "rng")
    after, drawn = draw(normal, 0, 1, rng=rng, size=(N,))
    options = {"updates": {rng: after} if updates else {}, "mode": PY}
    outputs = (drawn, "gather"), (drawn * 10, "gather")
    return rng, *(synk.function([X], out, streams="own", **options) for out in outputs)


@three_ranks
def test_every_rank_goes_on_with_its_own_stream_in_all_functions(ranks):
    """The numbers of numpy's own generators, rank by rank and call by call."""
    rng, f, g = own_noise()
    synk.broadcast(rng)
    generators = [synk.get_value(rank, rng) for rank in range(ranks)]
    value = np.zeros((2 * ranks + 1, 1))
    for function, factor in ((f, 1), (g, 10), (g, 10), (f, 1)):
        right = [
            generator.normal(size=len(part)) * factor
            for generator, part in zip(generators, cut(value, ranks), strict=True)
        ]
        assert_same(function(value), np.concatenate(right), 2)


@three_ranks
def test_own_streams_are_seeded_anew_for_all_ranks_or_one(ranks):
    rng, f, _ = own_noise()
    value = np.zeros((2 * ranks, 1))
    first, second = f(value), f(value)
    for seed_anew in (rng.set_value, functools.partial(synk.broadcast, rng)):
        seed_anew(np.random.default_rng(1))
        assert_same(f(value), first, 0)
        assert_same(f(value), second, 0)
        seed_anew(np.random.default_rng(2))
        third = f(value)
        assert not np.isin(third, [first, second]).any()
        assert len(set(third)) == third.size
    rng.set_value(np.random.default_rng(1))
    synk.set_value(1, rng, np.random.default_rng(42))
    drawn = f(value)
    assert_same(drawn[2:4], np.random.default_rng(42).normal(size=2), 0)
    assert_same(drawn[:2], np.random.default_rng(1).normal(size=2), 0)


def test_own_streams_go_on_in_a_second_session():
    """And without an update calls draw the same, and rows and slices others."""
    rng, f, _ = own_noise()
    drawn = []
    for _ in range(2):
        with synk.session(3):
            drawn += list(f(np.zeros((7, 1))))
            synk.broadcast(rng)
            drawn += list(f(np.zeros((7, 1))))
            _, g, _ = own_noise(updates=False)
            for slices in (1, 2):
                first = g(np.zeros((7, 1)), num_slices=slices)
                assert len(set(first)) == len(first)
                assert_same(g(np.zeros((7, 1)), num_slices=slices), first, 0)
    assert len(set(drawn)) == len(drawn)


@three_ranks
def test_draws_follow_the_rows_of_sliceable_variables(ranks):
    s, rng = pytensor.shared(np.zeros(6)), pytensor.shared(np.random.default_rng(1))
    after, drawn = draw(normal, 0, 1, rng=rng, size=s.shape)
    options = {"sliceable_shareds": [s], "updates": {rng: after}, "mode": PY}
    f, right = synk.function([], s + drawn, **options), np.random.default_rng(1)
    for rows, given in ((18, {}), (3, {"batch_s": slice(1)}), (18, {"num_slices": 2})):
        assert_same(f(**given), right.normal(size=rows), 0)
