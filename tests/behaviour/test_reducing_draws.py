"""Random draws that are not for rows: all ranks draw what the serial run draws."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child
from on_ranks import levels, three_ranks
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from reference import PY

import synk

pytestmark = pytest.mark.filterwarnings("ignore:RandomVariable Ops will stop hiding")

FAST = Mode("py", "fast_run")
"""With PyTensor's rewrites, which leave out draws that nothing needs."""

X, Y = pt.dmatrix("x"), pt.dvector("y")
INPUTS, N = [X, Y], X.shape[0]
normal, uniform = pt.random.normal, pt.random.uniform


def rows_of(rows: int) -> list[np.ndarray]:
    rng = np.random.default_rng(rows)
    return [rng.normal(size=(rows, 3)), rng.uniform(0.1, 0.9, rows)]


# -- graphs that draw what is not for rows ---------------------------------------------


def draw(op, *parameters, rng, **options):
    """Return the next state of a stream and what was drawn from it."""
    return op(*parameters, rng=rng, **options).owner.outputs


class Script:
    """A graph with parameters and a stream, each made anew: one for each function."""

    def __init__(self) -> None:
        self.rng = self.after = pytensor.shared(np.random.default_rng(5), "rng")
        self.w = pytensor.shared(np.array([0.5, -0.3, 0.2]), "w")
        self.updates: dict = {}

    def draw(self, op, *parameters, **options):
        """Draw from the stream, which goes on from there."""
        self.after, drawn = draw(op, *parameters, rng=self.after, **options)
        self.updates[self.rng] = self.after
        return drawn

    def descend(self, loss, noise=0):
        """Make a step down the gradient; return the outputs."""
        step = 0.1 * pytensor.grad(loss, self.w)
        self.updates[self.w] = self.w - step + 0.01 * noise
        return [loss]


def as_wide_as_rows(script):
    return [(X * script.draw(normal, size=(X.shape[1],))).sum(axis=0)]


def with_a_mean_as_parameter(script):
    drawn = script.draw(normal, X.mean(axis=0), Y.max())
    return [drawn, (X - drawn).mean()]


def one_after_the_other(script):
    """The second has to wait for what the ranks combine of the first."""
    first = script.draw(normal, size=(3,))
    return [first, script.draw(uniform, 0, (X @ first).var(), size=(2,))]


def both_from_one_state(script):
    """Two draws that begin alike, one of them behind a reduction."""
    _, second = draw(normal, X.mean(), 1, rng=script.rng, size=(2,))
    return [script.draw(normal, size=(3,)), second]


def noise_on_parameters(script):
    """Langevin dynamics: a step down the gradient, and noise."""
    noise = script.draw(normal, size=script.w.shape)
    return script.descend(((X @ script.w - Y) ** 2).mean(), noise)


def behind_exponentials(script):
    """Which PyTensor stabilises before anything is placed."""
    z = X @ (script.w + script.draw(normal, size=script.w.shape))
    return script.descend(pt.log(pt.exp(z).sum()) - z.mean())


def in_a_graph_of_its_own(script):
    """As an Op, which has statistics of the rows as well."""
    rng, x = script.rng.type("rng"), pt.dmatrix("rows")
    after, drawn = draw(normal, rng=rng, size=(3,))
    op = OpFromGraph([rng, x], [after, (x - x.mean(axis=0)) * drawn])
    script.updates[script.rng], scaled = op(script.rng, X)
    return [scaled]


def a_random_order(script):
    order = script.draw(pt.random.permutation, N)
    return [Y[order], order]


def a_sample_of_rows(script):
    taken = script.draw(pt.random.integers, 0, N, size=(4,))
    return [Y[taken].mean(), taken]


def a_choice_by_rows_as_odds(script):
    return [script.draw(pt.random.categorical, Y / Y.sum(), size=(5,))]


def a_gibbs_chain(script):
    """A chain in a loop, which the variable goes on with: it is of no row."""
    chain = pytensor.shared(np.zeros((2, 3)), "chain")

    def step(state, rng, w):
        rng, state = draw(normal, state * w, 1.0, rng=rng)
        return state, rng

    states, rng = pytensor.scan(
        *(step, [], [chain, script.rng], [script.w]), n_steps=3, return_updates=False
    )
    script.updates |= {chain: states[-1], script.rng: rng}
    return [(X @ script.w).mean() - (states[-1] @ script.w).mean(), states]


def without_an_update(script):
    drawn = script.draw(normal, size=(3,))
    script.updates = {script.w: script.w + drawn}
    return [drawn]


def by_random_streams(script):
    """As classical scripts do: a variable for each draw, updated by itself."""
    source = pt.random.RandomStream(3)
    few = source.choice(np.arange(9), size=(4,), replace=False)
    noisy = (X + source.normal(size=(3,))).mean(axis=0)
    return [noisy, source.uniform(size=(2,)), few]


def row_and_common(script):
    """Noise for each row between two draws that are for all."""
    first = script.draw(normal, size=(3,))
    of_rows = script.draw(normal, 0, 1, size=X.shape)
    script.updates[script.w] = script.w + first
    return [first, script.draw(uniform, size=(2,)), of_rows]


CASES = [
    *(as_wide_as_rows, with_a_mean_as_parameter, one_after_the_other),
    *(both_from_one_state, noise_on_parameters, behind_exponentials),
    *(in_a_graph_of_its_own, a_random_order, a_sample_of_rows),
    *(a_choice_by_rows_as_odds, a_gibbs_chain, without_an_update, by_random_streams),
]
REWRITTEN = [without_an_update, both_from_one_state, behind_exponentials]


def made(case, function, **options):
    """Make a function of a case, of either package; return it and its variables."""
    script = Script()
    outputs = case(script)
    options = {"mode": PY, "on_unused_input": "ignore", **options}
    f = function(INPUTS, outputs, updates=script.updates, **options)
    return f, list(script.updates)


def same(got, right):
    np.testing.assert_allclose(got, right, 1e-12, 1e-12)


def assert_stored(variables, right, rtol=1e-12):
    """Compare what two functions have updated: streams in the script, all on ranks."""
    for var, one in zip(variables, right, strict=True):
        value = one.get_value()
        if isinstance(value, np.random.Generator):
            assert var.get_value().bit_generator.state == value.bit_generator.state
            continue
        for got in synk.gather(var):
            np.testing.assert_allclose(got, value, rtol, 1e-12)


MODES = [
    *[pytest.param(case, PY, id=case.__name__) for case in CASES],
    *[pytest.param(case, FAST, id=f"{case.__name__}, rewritten") for case in REWRITTEN],
    pytest.param(noise_on_parameters, None, id="in the default mode"),
]


@three_ranks
@pytest.mark.filterwarnings("ignore::synk.SplitWarning", "ignore:RandomStream is dep")
@pytest.mark.parametrize(("case", "mode"), MODES)
def test_outputs_and_updates_are_those_of_the_serial_run(
    ranks, case, mode, graphs_in_python
):
    """In calls, with slices, and on ranks without rows."""
    plain, right = made(case, pytensor.function, mode=mode)
    f, variables = made(case, synk.function, mode=mode)
    assert f.updated[: len(variables)] == variables
    for rows, slices in ((7, 1), (7, 1), (11, 3), (2, 1)):
        values = rows_of(rows)
        expected = plain(*values)
        for got, one in zip(f(*values, num_slices=slices), expected, strict=True):
            same(got, one)
    assert_stored(variables, right)


@pytest.mark.parametrize(
    ("case", "meetings"), [(noise_on_parameters, 1), (as_wide_as_rows, 0)]
)
def test_ranks_do_not_meet_to_draw(case, meetings):
    f, _ = made(case, synk.function)
    assert len(levels(f)) == meetings


@three_ranks
def test_a_run_of_many_calls_draws_what_calls_draw(ranks):
    batches = [slice(0, 4), slice(2, 7), slice(0, 1), slice(1, 7)]
    values = rows_of(7)
    for case in (as_wide_as_rows, one_after_the_other, row_and_common):
        f, variables = made(case, synk.function)
        g, others = made(case, synk.function)
        for slices in (1, 2):
            results = f.run(batches, *values, num_slices=slices)
            calls = [g(*values, batch=batch, num_slices=slices) for batch in batches]
            for got, right in zip(results, zip(*calls, strict=True), strict=True):
                for one, other in zip(got, right, strict=True):
                    same(one, other)
            assert_stored(variables, others)


@in_a_child
def test_ranks_draw_alike_in_jax_mode():
    values = rows_of(8)
    with synk.session(2):
        f, variables = made(noise_on_parameters, synk.function, mode="JAX")
        plain, right = made(noise_on_parameters, synk.function, mode="JAX")
        for _ in range(2):
            expected = plain.as_theano(*values)
            for got, one in zip(f(*values), expected, strict=True):
                np.testing.assert_allclose(got, one, 1e-9, 1e-12)
        assert_stored(variables, right, 1e-9)


@three_ranks
def test_one_stream_serves_rows_and_what_is_for_all(ranks):
    """Where each rank draws for its rows from a stream of its own."""
    f, (stream, w) = made(row_and_common, synk.function, streams="own")
    assert f.output_modes[2] == "gather"
    x = np.zeros((8, 3))
    serial = np.random.default_rng(5)
    sums, rows = np.array([0.5, -0.3, 0.2]), []
    for num_slices in (1, 3, 1):
        first, last, of_rows = f(x, x[:, 0], num_slices=num_slices)
        # Those for all follow each other as if there were no others.
        same(first, serial.normal(size=3))
        same(last, serial.uniform(size=2))
        sums += first
        rows.append(of_rows)
    for value in synk.gather(w):
        same(value, sums)
    drawn = np.concatenate(rows).ravel()
    assert len(set(drawn)) == drawn.size == 3 * 8 * 3
    assert stream.get_value().bit_generator.state == serial.bit_generator.state


# -- what is checked and refused -------------------------------------------------------


def test_check_serial_takes_functions_whose_draws_are_the_serial_ones(two_ranks):
    f, _ = made(noise_on_parameters, synk.function)
    g, (stream, _) = made(row_and_common, synk.function, streams="own")
    before, values = stream.get_value().bit_generator.state, rows_of(7)
    for _ in range(2):
        f(*values, check="serial")
    with pytest.raises(ValueError, match="is random, and each rank draws numbers"):
        g(*values, check="serial")
    assert stream.get_value().bit_generator.state == before


# -- what is left to the ranks ---------------------------------------------------------


@pytest.mark.parametrize("local", [False, True])
@three_ranks
def test_a_named_op_leaves_each_rank_its_own_draws(ranks, local):
    """Monte Carlo: rank 0 draws the serial numbers, and the others more."""
    script = Script()
    drawn = script.draw(normal, size=(50,))
    options = {"updates": script.updates, "mode": PY, "local": local}
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
    drawn = script.draw(normal, size=(3,))
    outputs = [drawn, of(X @ drawn), (drawn, "gather")]
    f = synk.function([X], outputs, updates=script.updates, mode=PY)
    (x, _), serial, seen = rows_of(5), np.random.default_rng(5), []
    for _ in range(2):
        common, value, own = f(x)
        right = serial.normal(size=3)
        same(common, right)
        same(value, of(pt.constant(x @ right)).eval(mode=PY))
        seen += [*common, *own]
    assert len(set(seen)) == len(seen) == 2 * (3 + 6)


def test_updates_by_draws_of_a_local_function_are_complained_of(two_ranks):
    f, (_, w) = made(noise_on_parameters, synk.function, local=True)
    f(*rows_of(4))
    with pytest.warns(synk.SplitWarning, match="with w replicated, and that"):
        f(*rows_of(4))
    assert not np.allclose(*synk.gather(w))
