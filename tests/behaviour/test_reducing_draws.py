"""Random draws that are not for rows: all ranks draw what the serial run draws."""

from __future__ import annotations

import warnings

import draw_cases as cases
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child
from draw_cases import INPUTS, Script, X, Y, draw
from on_ranks import levels
from pytensor.compile.mode import Mode
from reference import PY

import synk

pytestmark = pytest.mark.filterwarnings("ignore:RandomVariable Ops will stop hiding")

FAST = Mode("py", "fast_run")
"""With PyTensor's rewrites, which leave out draws that nothing needs."""

three_ranks = pytest.mark.parametrize("ranks", [3], ids=["3ranks"], indirect=True)


def made(case, function, **options):
    """Make a function of a case, of either package; return it and its variables."""
    script = Script()
    outputs, updates = case(script)
    options = {"mode": PY, "on_unused_input": "ignore", **options}
    return function(INPUTS, outputs, updates=updates, **options), list(updates)


def same(got, right):
    np.testing.assert_allclose(got, right, 1e-12, 1e-12)


def states_of(variables):
    """Return the states of the streams among variables, on the master."""
    values = [var.get_value() for var in variables]
    return [v.bit_generator.state for v in values if isinstance(v, np.random.Generator)]


def compare(case, calls=((7, 1), (7, 1), (11, 3), (2, 1)), mode=PY):
    """Compare calls of so many rows, in slices, with the serial run.

    It is the outputs that are compared, and then updates on every rank.
    """
    plain, right = made(case, pytensor.function, mode=mode)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", synk.SplitWarning)
        f, variables = made(case, synk.function, mode=mode)
    assert f.updated == variables
    for rows, slices in calls:
        values = cases.values(rows)
        expected = plain(*values)
        for got, one in zip(f(*values, num_slices=slices), expected, strict=True):
            same(got, one)
    assert states_of(variables) == states_of(right)
    for var, one in zip(variables, right, strict=True):
        if not isinstance(one.get_value(), np.random.Generator):
            for got in synk.gather(var):
                same(got, one.get_value())


REWRITTEN = [
    cases.without_an_update,
    cases.nothing_but_an_update,
    cases.both_from_one_state,
    cases.behind_exponentials,
]


@three_ranks
@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.__name__)
def test_outputs_and_updates_are_those_of_the_serial_run(ranks, case, graphs_in_python):
    """In calls, with slices, and on ranks without rows."""
    compare(case)


@three_ranks
def test_so_they_are_where_pytensor_leaves_out_draws_that_nothing_needs(ranks):
    for case in REWRITTEN:
        compare(case, mode=FAST)


@pytest.mark.parametrize(
    ("case", "meetings"), [(cases.noise_on_parameters, 1), (cases.as_wide_as_rows, 0)]
)
def test_ranks_do_not_meet_to_draw(case, meetings):
    f, _ = made(case, synk.function)
    assert len(levels(f)) == meetings


@three_ranks
def test_streams_of_random_streams_are_the_serial_ones(ranks):
    """As classical scripts make them: a variable for each draw, updated by itself."""

    def make(function):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            source = pt.random.RandomStream(3)
            outputs = [
                (X + source.normal(size=(3,))).mean(axis=0),
                source.uniform(size=(2,)),
                source.choice(np.arange(9), size=(4,), replace=False),
            ]
        return function([X], outputs, mode=PY)

    plain, f = make(pytensor.function), make(synk.function)
    for rows in (7, 2, 4):
        (x, _) = cases.values(rows)
        for got, right in zip(f(x), plain(x), strict=True):
            same(got, right)


def test_they_are_in_the_default_mode(two_ranks):
    compare(cases.noise_on_parameters, ((5, 1), (5, 1)), mode=None)


@three_ranks
def test_a_run_of_many_calls_draws_what_calls_draw(ranks):
    batches = [slice(0, 4), slice(2, 7), slice(0, 1), slice(1, 7)]
    values = cases.values(7)
    for case in (cases.as_wide_as_rows, cases.one_after_the_other, row_and_common):
        f, variables = made(case, synk.function, mode=PY)
        g, others = made(case, synk.function, mode=PY)
        for slices in (1, 2):
            results = f.run(batches, *values, num_slices=slices)
            calls = [g(*values, batch=batch, num_slices=slices) for batch in batches]
            for got, right in zip(results, zip(*calls, strict=True), strict=True):
                for one, other in zip(got, right, strict=True):
                    same(one, other)
            assert states_of(variables) == states_of(others)


@in_a_child
def test_ranks_draw_alike_in_jax_mode():
    chosen = [cases.one_after_the_other, cases.noise_on_parameters]
    values = cases.values(8)
    with synk.session(2):
        for case in chosen:
            f, variables = made(case, synk.function, mode="JAX")
            plain, right = made(case, synk.function, mode="JAX")
            for _ in range(2):
                expected = plain.as_theano(*values)
                for got, one in zip(f(*values), expected, strict=True):
                    np.testing.assert_allclose(got, one, 1e-9, 1e-12)
            assert states_of(variables) == states_of(right)
            for var, one in zip(variables, right, strict=True):
                if not isinstance(one.get_value(), np.random.Generator):
                    for got in synk.gather(var):
                        np.testing.assert_allclose(got, one.get_value(), 1e-9)


# -- for rows and for all, from one stream ---------------------------------------------


def row_and_common(script):
    """Noise for each row between two draws that are for all."""
    first, updates = script.normal(size=(3,))
    rng = updates[script.rng]
    rng, of_rows = draw(pt.random.normal, 0, 1, rng=rng, size=X.shape)
    rng, last = draw(pt.random.uniform, rng=rng, size=(2,))
    updates = {script.rng: rng, script.w: script.w + first}
    return [first, last, of_rows], updates


@three_ranks
def test_one_stream_serves_rows_and_what_is_for_all(ranks):
    script = Script()
    outputs, updates = row_and_common(script)
    f = synk.function([X], outputs, updates=updates, mode=PY)
    assert f.output_modes[2] == "gather"
    x = np.zeros((8, 3))
    serial = np.random.default_rng(5)
    sums, rows = np.array([0.5, -0.3, 0.2]), []
    for num_slices in (1, 3, 1):
        first, last, of_rows = f(x, num_slices=num_slices)
        # Those for all follow each other as if there were no others.
        same(first, serial.normal(size=3))
        same(last, serial.uniform(size=2))
        sums += first
        rows.append(of_rows)
    for value in synk.gather(script.w):
        same(value, sums)
    drawn = np.concatenate(rows).ravel()
    assert len(set(drawn)) == drawn.size == 3 * 8 * 3
    assert script.rng.get_value().bit_generator.state == serial.bit_generator.state


def test_draws_for_rows_have_the_right_moments(two_ranks):
    script = Script()
    outputs, updates = row_and_common(script)
    f = synk.function([X], outputs, updates=updates, mode=PY)
    drawn = np.concatenate([f(np.zeros((1000, 3)))[2] for _ in range(4)])
    assert abs(drawn.mean()) < 5 / np.sqrt(drawn.size)
    assert abs(drawn.var() - 1) < 5 * np.sqrt(2 / drawn.size)
    halves = drawn.reshape(4, 2, -1)  # of the ranks
    correlation = np.corrcoef(halves[:, 0].ravel(), halves[:, 1].ravel())[0, 1]
    assert abs(correlation) < 5 / np.sqrt(6000)


def test_functions_for_rows_and_for_all_draw_on_from_one_variable(two_ranks):
    script = Script()
    rng = script.rng
    after, of_rows = draw(pt.random.normal, 0, 1, rng=rng, size=X.shape)
    f = synk.function([X], of_rows, updates={rng: after}, mode=PY)
    drawn, updates = script.normal(size=(4,))
    g = synk.function([], drawn, updates=updates, mode=PY)
    numbers = []
    for _ in range(2):
        numbers += [*f(np.zeros((4, 3))).ravel(), *g()]
    assert len(set(numbers)) == len(numbers)
    # Rank 0 has half of the rows, and draws both from the variable itself.
    rank_0 = [
        n for start, stop in ((0, 6), (12, 22), (28, 32)) for n in numbers[start:stop]
    ]
    same(rank_0, np.random.default_rng(5).normal(size=20))


# -- where a stream is between calls ---------------------------------------------------


class Fails(pytensor.graph.op.Op):
    """Returns its input; raises on one rank if that is negative."""

    __props__ = ("rank",)

    def __init__(self, rank):
        self.rank = rank

    def make_node(self, x):
        return pytensor.graph.basic.Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        if synk.rank() == self.rank and inputs[0].min() < 0:
            raise ArithmeticError("a negative number")
        outputs[0][0] = inputs[0]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_call_that_fails_on_a_rank_draws_nothing(two_ranks, rank):
    for is_split in (False, True):
        check_a_call_that_fails(rank, is_split)


def check_a_call_that_fails(rank, is_split):
    script = Script()
    drawn, updates = script.normal(size=(3,))
    outputs = [drawn, (Fails(rank)(Y).mean(), "avg")]
    if is_split:
        rng, of_rows = draw(pt.random.normal, rng=updates[script.rng], size=Y.shape)
        updates = {script.rng: rng}
        outputs.append(of_rows)
    f = synk.function([Y], outputs, updates=updates, mode=PY)
    serial = np.random.default_rng(5)
    for y in (np.ones(4), -np.ones(4), np.ones(4), -np.ones(4), np.ones(1)):
        if y[0] > 0:
            same(f(y)[0], serial.normal(size=3))
            continue
        with pytest.raises(ArithmeticError):
            f(y)
        with pytest.raises(ArithmeticError):
            f.run([slice(0, 2)], y)
    assert script.rng.get_value().bit_generator.state == serial.bit_generator.state


@three_ranks
def test_the_masters_variable_says_where_a_stream_is(ranks, tmp_path):
    script, checkpoint = Script(), tmp_path / "checkpoint.npz"
    noise, updates = script.normal(size=(3,))
    updates[script.w] = noise
    f = synk.function([], noise, updates=updates, mode=PY)
    plain = pytensor.function([], noise, updates=updates, mode=PY)

    def all_have(right):
        same(f(), right)
        for got in synk.gather(script.w):
            same(got, right)

    serial = np.random.default_rng(5)
    synk.distribute()
    all_have(serial.normal(size=3))
    same(plain(), serial.normal(size=3))
    same(f.as_theano(), serial.normal(size=3))
    all_have(serial.normal(size=3))
    synk.save(checkpoint, [script.rng])
    for seed in (
        lambda rng: script.rng.set_value(rng),
        lambda rng: synk.broadcast(script.rng, rng),
        lambda rng: synk.set_value(0, script.rng, rng),
    ):
        seed(np.random.default_rng(8))
        again = np.random.default_rng(8)
        all_have(again.normal(size=3))
        all_have(again.normal(size=3))
    synk.load(checkpoint, [script.rng])
    all_have(serial.normal(size=3))


def test_a_stream_goes_on_from_session_to_session():
    script = Script()
    noise, updates = script.normal(size=(3,))
    f = synk.function([], noise, updates=updates, mode=PY)
    serial = np.random.default_rng(5)
    for n in (2, 1, 3):
        with synk.session(n):
            for _ in range(2):
                same(f(), serial.normal(size=3))


def test_check_serial_takes_functions_whose_draws_are_for_all(two_ranks):
    f, _ = made(cases.noise_on_parameters, synk.function)
    g, _ = made(row_and_common, synk.function)
    values = cases.values(7)
    for _ in range(2):
        f(*values, check="serial")
    with pytest.raises(ValueError, match="is random, and each rank draws numbers"):
        g(*values, check="serial")


def test_draws_after_one_whose_size_is_not_understood_are_refused(two_ranks):
    def walk(script):
        def step(row, state, rng):
            rng, noise = draw(pt.random.normal, rng=rng)
            return state * 0.5 + row + noise, rng

        states, rng = pytensor.scan(
            step,
            sequences=[Y],
            outputs_info=[pt.zeros(()), script.rng],
            return_updates=False,
        )
        rng, drawn = draw(pt.random.normal, rng=rng, size=states.shape)
        rng, last = draw(pt.random.normal, rng=rng, size=states.shape)
        return [(drawn * last * states).sum()], {script.rng: rng}

    f, _ = made(walk, synk.function)
    with pytest.raises(synk.SplitError, match="goes along the rows"):
        f(*cases.values(5))


# -- what is left to the ranks ---------------------------------------------------------


@pytest.mark.parametrize("local", [False, True])
@three_ranks
def test_a_named_op_leaves_each_rank_its_own_draws(ranks, local):
    """Monte Carlo: rank 0 draws the serial numbers, and the others more."""
    script = Script()
    drawn, updates = script.normal(size=(50,))
    options = {"updates": updates, "mode": PY, "local": local}
    f = synk.function([], [(drawn, "gather"), (drawn.mean(), "avg")], **options)
    serial, seen = np.random.default_rng(5), []
    for _ in range(2):
        samples, mean = f()
        assert len(samples) == 50 * ranks
        same(samples[:50], serial.normal(size=50))
        same(mean, samples.mean())
        seen += list(samples)
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("of", [lambda z: z.mean(), lambda z: pt.log(pt.exp(z).sum())])
def test_what_is_named_and_what_is_not_draw_apart(two_ranks, of):
    """Also where the graph is stabilised, which makes another of it."""
    script = Script()
    drawn, updates = script.normal(size=(3,))
    outputs = [drawn, of(X @ drawn), (drawn, "gather")]
    f = synk.function([X], outputs, updates=updates, mode=PY)
    (x, _), serial, seen = cases.values(5), np.random.default_rng(5), []
    for _ in range(2):
        common, value, own = f(x)
        right = serial.normal(size=3)
        same(common, right)
        same(value, of(pt.constant(x @ right)).eval(mode=PY))
        seen += [*common, *own]
    assert len(set(seen)) == len(seen) == 2 * (3 + 6)


def test_updates_by_draws_of_a_local_function_are_complained_of(two_ranks):
    script = Script()
    noise, updates = script.normal(size=(3,))
    updates[script.w] = script.w + noise
    loss = (X @ script.w).mean()
    f = synk.function([X], loss, updates=updates, mode=PY, local=True)
    f(np.ones((4, 3)))
    with pytest.warns(synk.SplitWarning, match="with w equal on all ranks, and that"):
        f(np.ones((4, 3)))
    assert not np.allclose(*synk.gather(script.w))
