"""Updates and givens of a function, beside plain PyTensor; and the update rules."""

import re

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from on_ranks import one_and_three_ranks, three_ranks
from pytensor.compile.mode import Mode
from pytensor.graph.replace import clone_replace
from reference import PY, assert_same, cut, values_of

import synk
from synk import updates

SLICES = (1, 2, 7)


@one_and_three_ranks
def test_every_rank_has_the_new_value_of_the_serial_run(ranks):
    x = pt.vector("x")
    total = pytensor.shared(0.0, name="total")
    calls = pytensor.shared(np.int64(2**60), name="calls")
    rate = pytensor.shared(np.float32(0.1))
    flag = pytensor.shared(np.array(False))
    updates = [(total, total + x.sum()), [calls, calls + 1], (rate, rate * 3)]
    updates.append((flag, ~flag))
    f = synk.function([x], updates=updates, mode=PY)
    assert f.update_modes == [None] * 4
    value = np.arange(1.0, 8.0)
    right = np.float32(0.1)
    for times in (1, 2, 3):
        f(value, num_slices=times)
        right = np.float32(right * np.float32(3))
        for rank in range(ranks):
            held = synk.get_value(rank, [total, calls, rate, flag])
            # What depends on no rows is made once in any slices, and exactly.
            assert held[0] == times * value.sum()
            assert held[1] == 2**60 + times
            assert_same(held[2], right)
            assert held[3] == bool(times % 2)


@pytest.mark.parametrize("local", [False, True])
@three_ranks
def test_a_rank_without_rows_has_the_others_new_values_or_what_needs_no_rows(
    ranks, local
):
    x, b = pt.vector("x"), pt.scalar("b")
    kept = pytensor.shared(np.full(1, -1.0))
    mean, top, both, length, given = (pytensor.shared(-1.0) for _ in range(5))
    updates = {mean: x.mean(), top: x.max(), both: b * x.sum(), kept: 2 * x}
    updates |= {length: 1.0 * x.shape[0], given: b * 2}
    f = synk.function([x], x.sum(), [b], updates=updates, mode=PY, local=local)
    for times in (1, 2):
        f([4.0], 3.0, num_slices=times)
        for rank in range(ranks):
            values = synk.get_value(rank, [mean, top, both, kept, length])
            without = local and rank > 0
            assert values == ([-1, -1, -1, [-1], -1] if without else [4, 4, 12, [8], 1])
            assert synk.get_value(rank, given) == 6


@one_and_three_ranks
def test_updates_see_the_values_before_the_call(ranks):
    a, b, c = (pytensor.shared(float(i)) for i in (1, 2, 3))
    f = synk.function([], [a + 0, c + 0], updates=[(a, b), (b, a), (c, a + b)], mode=PY)
    right = [1.0, 2.0, 3.0]
    for _ in range(3):
        assert f() == [right[0], right[2]]
        right = [right[1], right[0], right[0] + right[1]]
        for rank in range(ranks):
            assert synk.get_value(rank, [a, b, c]) == right
    x, w = pt.vector("x"), pytensor.shared(1.0)
    g = synk.function([x], [(x * w, "gather")], updates={w: w * 2}, mode=PY)
    for times in range(3):  # in every slice, too
        assert_same(g(np.arange(1.0, 8), num_slices=3)[0], np.arange(1.0, 8) * 2**times)


@three_ranks
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_slices_of_an_update_are_accumulated_by_its_op(ranks, dtype):
    x = pt.matrix("x", dtype=dtype)
    new_values = {
        "avg": x.sum(axis=0) // x.shape[0] if dtype == "int64" else x.mean(axis=0),
        "sum": pt.sum(x, axis=0, dtype=dtype),
        "prod": pt.prod(x, axis=0, dtype=dtype),
        "min": x.min(axis=0),
        "max": x.max(axis=0),
    }
    stores = {op: pytensor.shared(np.zeros(3, dtype)) for op in new_values}
    updates = [(stores[op], new, op) for op, new in new_values.items()]
    f = synk.function([x], updates=updates, mode=PY)
    assert f.update_modes == list(stores)
    value = values_of(dtype, (4 * ranks + 1, 3), 2)
    if dtype == "int64":  # equal rows have an integer mean, whatever the slices
        value = np.broadcast_to(np.array([3, -5, 2**40]), value.shape)
    expected = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max}
    expected["avg"] = np.mean
    for slices in SLICES:
        f(value, num_slices=slices)
        for rank, part in enumerate(cut(value, ranks)):
            for op, store in stores.items():
                right = expected[op](part, axis=0).astype(dtype)
                what = f"{op} in {slices} slices"
                assert_same(synk.get_value(rank, store), right, 16, err_msg=what)


# -- training --------------------------------------------------------------------------


def serial_step(X, y, w, v):
    """One step of momentum for the mean of squared errors, in numpy."""
    v = 0.9 * v - 0.2 * X.T @ (X @ w - y) / len(X)
    return w + v, v


@three_ranks
def test_gradients_in_shared_variables_train_as_the_serial_run(ranks):
    """The classical way: gradients to variables, all_reduce, then the update rule."""
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(7, 3)), rng.normal(size=7)
    inputs, data = (pt.matrix("X"), pt.vector("y")), (synk.data(X), synk.data(y))
    for local in (False, True):
        w, v, g = (pytensor.shared(np.zeros(3), name=name) for name in "wvg")
        loss = ((inputs[0].dot(w) - inputs[1]) ** 2).mean()
        gradient = {g: pytensor.grad(loss, w)}
        collect = synk.function(inputs, loss, updates=gradient, mode=PY, local=local)
        new = 0.9 * v - 0.1 * g
        step = synk.function([], updates=[(v, new), (w, w + new)], mode=PY)
        right = np.zeros(3), np.zeros(3)
        for slices, rows in ((1, 7), (2, 1), (2, 7), (7, 3)):
            collect(*data, batch=rows, num_slices=slices)
            synk.all_reduce(g)
            step()
            right = serial_step(X[:rows], y[:rows], *right)
            for rank in range(ranks):
                for var, value in zip((w, v), right, strict=True):
                    assert_same(synk.get_value(rank, var), value, 128, 1)


# -- default updates and givens --------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Setting default_update")
def test_a_default_update_is_made_unless_it_is_excluded(two_ranks):
    n = pytensor.shared(0)
    n.default_update = n + 1
    x = pt.vector("x")
    y = x.sum() + n

    def after(slices=1, **options):
        f = synk.function([x], (y, "max"), mode=PY, **options)
        result = f(np.zeros(3), num_slices=slices)
        values = [int(synk.get_value(rank, n)) for rank in range(2)]
        assert values[0] == values[1]
        return int(result), values[0]

    assert after() == (0, 1)
    assert after(slices=3) == (1, 2)
    assert after(no_default_updates=True) == (2, 2)
    assert after(no_default_updates=True, slices=2) == (2, 2)
    assert after(no_default_updates=[n]) == (2, 2)
    assert after(updates={n: n + 10}) == (2, 12)
    assert after(updates={n: n + 10}, slices=2) == (12, 22)
    other = pytensor.shared(0)
    assert after(no_default_updates=[other]) == (22, 23)


@pytest.mark.filterwarnings("ignore:Setting default_update")
def test_a_default_update_of_what_givens_have_replaced_is_not_made(two_ranks):
    n, x = pytensor.shared(0), pt.vector("x")
    n.default_update = n + 1
    mask = n * 1.0
    for given, made in ((pt.as_tensor(np.float64(5)), 0), (n * 2.0, 1)):
        n.set_value(0)
        arguments = ([x], x.mean() + mask)
        plain = pytensor.function(*arguments, givens={mask: given}, mode=PY)
        plain([0.0])
        assert n.get_value() == made
        synk.broadcast(n, 0)
        f = synk.function(*arguments, givens={mask: given}, mode=PY)
        f([0.0, 0.0])
        assert synk.get_value(0, n) == synk.get_value(1, n) == made


@one_and_three_ranks
def test_givens_replace_variables_in_outputs_and_updates(ranks):
    x, y, z = pt.vectors("x", "y", "z")
    w = pytensor.shared(np.float64(3))
    s = pytensor.shared(np.float64(0))
    expression = (x * w + z).sum()
    pairs = [(x, 2 * y), (z, y + 1), (w, pt.as_tensor(np.float64(10)))]
    for givens in (pairs, dict(pairs)):
        f = synk.function([y], (expression, "sum"), None, {s: x.sum()}, givens, mode=PY)
        plain = pytensor.function([y], expression, givens=givens, mode=PY)
        value = np.arange(7.0)
        assert f(value) == plain(value) == (21 * value + 1).sum()
        for rank in range(ranks):
            assert synk.get_value(rank, s) == 2 * value.sum()
    # The classical way: data in a shared variable, an index as input.
    X = pytensor.shared(np.arange(20.0).reshape(10, 2))
    m, i = pt.matrix("m"), pt.lvector("i")
    f = synk.function([i], (m.sum(axis=1), "gather"), givens={m: X[i]}, mode=PY)
    rows = np.array([9, 0, 4, 4, 7])
    assert_same(f(rows), X.get_value()[rows].sum(axis=1))


def test_what_is_given_is_cast_where_that_loses_nothing(two_ranks):
    x, k = pt.vector("x"), pt.ivector("k")
    singles = pytensor.shared(np.arange(6, dtype="float32"))
    bytes_ = pytensor.shared(np.arange(6, dtype="uint8"))
    givens, output = {x: singles, k: bytes_}, (x * k).sum()
    f = synk.function([], (output, None), givens=givens, mode=PY)
    assert_same(f(), np.float64(55))
    rows = [*givens.values()]
    f = synk.function([], (output, "sum"), None, None, givens, rows, mode=PY)
    assert_same(f(batch_s=[[5, 5], slice(1, 3)]), np.float64(55))
    with pytest.raises(TypeError, match="float64"):
        synk.function([], (output, None), givens={bytes_: x})


# -- rules -----------------------------------------------------------------------------


IN_PLACE = Mode("py", "fast_run")
STEPS = 20
START = {"w": np.linspace(-1, 1, 6).reshape(3, 2), "b": np.array([0.1, -0.2])}

MOMENTUM = {"learning_rate": 0.05, "momentum": 0.8}
# rule, its arguments
OPTIONS = {
    "sgd": {"learning_rate": 0.1},
    "momentum": MOMENTUM,
    "nesterov_momentum": MOMENTUM,
    "adagrad": {"learning_rate": 0.1},
    "rmsprop": {"learning_rate": 0.02, "rho": 0.95},
    "adadelta": {"learning_rate": 0.9},
    "adam": {"learning_rate": 0.05, "beta1": 0.8, "beta2": 0.99},
    "adamax": {"learning_rate": 0.05},
    "adamw": {"learning_rate": 0.05, "weight_decay": 0.1},
}


def _problem(dtype="float64"):
    x, y = pt.matrix("x", dtype=dtype), pt.vector("y", dtype=dtype)
    w = pytensor.shared(START["w"].astype(dtype), "w")
    b = pytensor.shared(START["b"].astype(dtype), "b")
    loss = ((pt.tanh(x @ w + b).sum(axis=1) - y) ** 2).mean()
    return [x, y], loss, [w, b]


def _rows():
    random = np.random.default_rng(5)
    return random.normal(size=(STEPS, 7, 3)), random.normal(size=(STEPS, 7))


def _in_numpy(name):
    """Return the parameters after `STEPS`, by the formulas of the papers."""
    options = OPTIONS[name]
    inputs, loss, params = _problem()
    w, b = pt.matrix(), pt.vector()
    replaced = dict(zip(params, [w, b], strict=True))
    gradients = clone_replace(pytensor.grad(loss, params), replaced)
    slopes = pytensor.function([*inputs, w, b], gradients, mode=PY)
    values = [START["w"], START["b"]]
    first, second = ([np.zeros_like(value) for value in values] for _ in range(2))
    for t, (x, y) in enumerate(zip(*_rows(), strict=True), 1):
        for i, g in enumerate(slopes(x, y, *values)):
            values[i], first[i], second[i] = _RULES[name](
                values[i], g, first[i], second[i], t, options["learning_rate"], options
            )
    return values


def _adam(p, g, m, v, t, rate, o):
    beta1, beta2 = o.get("beta1", 0.9), o.get("beta2", 0.999)
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    p = p * (1 - rate * o.get("weight_decay", 0))
    step = m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + 1e-8)
    return p - rate * step, m, v


def _nesterov(p, g, v, unused, t, rate, o):
    v = o["momentum"] * v - rate * g
    return p + o["momentum"] * v - rate * g, v, unused


def _momentum(p, g, v, unused, t, rate, o):
    v = o["momentum"] * v - rate * g
    return p + v, v, unused


def _adagrad(p, g, a, unused, t, rate, o):
    a = a + g * g
    return p - rate * g / (np.sqrt(a) + 1e-10), a, unused


def _rmsprop(p, g, a, unused, t, rate, o):
    a = o["rho"] * a + (1 - o["rho"]) * g * g
    return p - rate * g / (np.sqrt(a) + 1e-8), a, unused


def _adadelta(p, g, a, d, t, rate, o):
    a = 0.9 * a + 0.1 * g * g
    step = g * np.sqrt(d + 1e-6) / np.sqrt(a + 1e-6)
    return p - rate * step, a, 0.9 * d + 0.1 * step * step


def _adamax(p, g, m, u, t, rate, o):
    m, u = 0.9 * m + 0.1 * g, np.maximum(0.999 * u, np.abs(g) + 1e-8)
    return p - rate / (1 - 0.9**t) * m / u, m, u


_RULES = {
    "sgd": lambda p, g, a, b, t, rate, o: (p - rate * g, a, b),
    "momentum": _momentum,
    "nesterov_momentum": _nesterov,
    "adagrad": _adagrad,
    "rmsprop": _rmsprop,
    "adadelta": _adadelta,
    "adam": _adam,
    "adamax": _adamax,
    "adamw": _adam,
}


@three_ranks
def test_all_rules_follow_their_formulas_on_three_ranks(ranks):
    inputs, params, steps = [], {}, {}
    for name, options in OPTIONS.items():
        of_rule, loss, params[name] = _problem()
        inputs = inputs or of_rule
        loss = clone_replace(loss, dict(zip(of_rule, inputs, strict=True)))
        steps |= getattr(updates, name)(loss, params[name], **options)
    assert sorted(params) == sorted(updates.__all__)
    step = synk.function(inputs, [], updates=steps, mode=PY)
    for x, y in zip(*_rows(), strict=True):
        step(x, y)
    for name, variables in params.items():
        for var, expected in zip(variables, _in_numpy(name), strict=True):
            np.testing.assert_allclose(var.get_value(), expected, 1e-10, err_msg=name)


@pytest.mark.parametrize("name", ["adam", "adamw", "adamax", "rmsprop"])
def test_the_first_step_in_float32_is_right_to_the_last_digits(name):
    """What a running mean takes of the new is 1 - 0.999, and that of float32 is not."""
    w, g = pytensor.shared(np.float32([0.0]), "w"), pt.fvector("g")
    options, step = {}, 0.1
    if name == "rmsprop":
        options, step = {"rho": 0.999}, 0.1 / np.sqrt(0.001)
    rule = getattr(updates, name)([g], [w], learning_rate=0.1, **options)
    pytensor.function([g], updates=rule, mode=IN_PLACE)(np.float32([1.0]))
    np.testing.assert_allclose(w.get_value(), -step, rtol=4e-7)


@pytest.mark.parametrize("name", updates.__all__)
def test_float32_parameters_and_their_state_stay_float32(name):
    inputs, loss, params = _problem("float32")
    rule = getattr(updates, name)(loss, params, pytensor.shared(np.float64(0.1)))
    for var, new in rule.items():
        assert new.type.dtype == var.type.dtype
        assert var.type.dtype in ("float32", "int64")
    step = pytensor.function(inputs, loss, updates=rule, mode=PY)
    step(np.ones((2, 3), "float32"), np.ones(2, "float32"))
    assert {param.get_value().dtype for param in params} == {np.dtype("float32")}


def test_gradients_are_taken_as_they_are():
    _, loss, params = _problem()
    rule = updates.sgd([pt.ones((3, 2)), pt.ones(2)], params, 0.5)
    pytensor.function([], [], updates=rule, mode=PY)()
    np.testing.assert_allclose(params[0].get_value(), START["w"] - 0.5)
    assert len(updates.adam([], [])) == 1  # the number of steps
    with pytest.raises(ValueError, match="1 gradients for 2 parameters"):
        updates.sgd([pt.ones(2)], params, 0.5)
    with pytest.raises(TypeError, match="shared variables"):
        updates.sgd(loss, [pt.vector("v")], 0.5)


@pytest.mark.parametrize("name", updates.__all__)
def test_the_names_of_a_rules_state_are_unique_and_stable(name):
    names = []
    for _ in range(2):
        _, loss, params = _problem()
        names.append([var.name for var in getattr(updates, name)(loss, params, 0.1)])
        other = getattr(updates, name)(loss, [params[1]], 0.1)
    first, again = names
    assert first == again
    assert len(set(first)) == len(first)
    state = [var for var in first if var not in ("w", "b")]
    assert all(re.match(rf"[wb]:{name}_[a-z]+$", var) for var in state)
    # Of a second rule of the same kind, for other parameters.
    assert {var.name for var in other} <= {"b", f"b:{name}_step", *first}
    nameless = getattr(updates, name)([pt.ones(2)], [pytensor.shared(np.zeros(2))], 0.1)
    assert {var.name for var in nameless} == {None}
