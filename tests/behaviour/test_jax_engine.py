"""Functions compiled for JAX: rows, shared variables and random streams."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child
from reference import PY

import synk
from synk.engines import jax as jax_engine
from synk.ranks.session import SESSION

# What JAX gives is compared with PyTensor in Python, without compiling by numba or C.
pytestmark = pytest.mark.usefixtures("scans_in_python")

SIZES = (1, 3)


def session_of(n: int):
    """Return a session; the tests that have it run on GPUs as well."""
    return synk.session(n)


def stream(seed: int = 5):
    """Return a shared random generator."""
    return pytensor.shared(np.random.default_rng(seed), name="stream")


def noise(rng, x):
    """Return the stream's next value, and uniform numbers, one for each row of x."""
    return pt.random.uniform(size=(x.shape[0],), rng=rng).owner.outputs


@pytest.mark.parametrize("n", [1, 2])
@in_a_child
def test_a_call_has_read_its_rows_when_the_next_one_takes_others(n):
    """JAX computes on after a call, from memory that the next call's rows go to."""
    x = pt.matrix("x")
    once = pytensor.shared(np.eye(300))
    total = pytensor.shared(np.zeros(()))
    product = x
    for _ in range(8):
        product = product @ once
    rows = [np.full((600, 300), float(i)) for i in range(8)]
    with synk.session(n):
        add = synk.function(
            [x], updates=[(total, total + product.sum(), "sum")], mode="JAX"
        )
        data = synk.data(np.concatenate(rows))
        for i in range(len(rows)):
            add(data, batch=np.arange(600 * i, 600 * (i + 1)))
        synk.all_reduce(total, "sum")
        assert float(total.get_value()) == 600 * 300 * sum(range(8))


@pytest.mark.parametrize("n", [1, 2])
@in_a_child
def test_what_outlives_a_call_is_not_in_memory_that_is_used_again(n):
    """Shared variables that are set to inputs, and outputs that are inputs."""
    x, b = pt.matrix("x"), pt.matrix("b")
    s, t, r, before = (
        pytensor.shared(np.zeros((1, 64)), name=f"s{i}") for i in range(4)
    )
    updates = {s: x, t: b, r: x.reshape((-1, 64)), before: s}
    first = np.arange(64.0 * 64).reshape(64, 64)
    second = first + 1e6
    batches = slice(0, 48), np.arange(63, 15, -1)
    with session_of(n):
        for batch, local in itertools.product(batches, (False, True)):
            f = synk.function(
                [x], (x, "gather"), [b], updates=updates, mode="JAX", local=local
            )
            synk.broadcast(s)
            for make in (synk.data, np.array):
                X, B = make(first), make(first)
                whole = f(X, B, batch=batch)
                X[:], B[:] = second, second
                np.testing.assert_array_equal(whole, first[batch])
                f.run([batch, batch], X, B)
                f(X, B, batch=batch)
                X[:], B[:] = first, first
                np.testing.assert_array_equal(f(X, B, batch=batch), first[batch])
                X[:], B[:] = -1, -1
                for rank, share in enumerate(np.array_split(np.arange(48), n)):
                    found = synk.get_value(rank, [s, t, r, before])
                    kept = share if local else slice(None)
                    mine = first[batch][kept]
                    expected = mine, first, mine, second[batch][kept]
                    for value, of_rank in zip(found, expected, strict=True):
                        np.testing.assert_array_equal(value, of_rank)


@in_a_child
def test_a_call_that_was_interrupted_keeps_the_rows_that_it_computes_with():
    """JAX goes on computing after an interrupt; the call has changed nothing."""
    x = pt.matrix("x")
    once, s = pytensor.shared(np.eye(400)), pytensor.shared(np.zeros((1, 400)))
    product = x
    for _ in range(8):
        product = product @ once
    with session_of(1):
        f = synk.function([x], updates={s: product}, mode="JAX")
        data = synk.data(np.repeat(np.arange(6.0), 400)[:, None] * np.ones(400))

        def interrupt():
            raise KeyboardInterrupt

        for k in range(0, 6, 2):
            before = s.get_value()
            jax_engine.look_about_with(interrupt)
            with pytest.raises(KeyboardInterrupt):
                f(data, batch=np.arange(400 * k, 400 * (k + 1)))
            np.testing.assert_array_equal(s.get_value(), before)
            jax_engine.look_about_with(None)
            programs = SESSION.context.registry.functions[f._engines.present.number]
            programs.takers.take([data.data], [np.arange(400 * (k + 1), 400 * (k + 2))])
            f(data, batch=np.arange(400 * k, 400 * (k + 1)))
            assert (s.get_value() == k).all()


@pytest.mark.parametrize("n", [1, 2])
@in_a_child
def test_code_is_compiled_once_for_a_shape(n):
    """However shared variables came to their values, and the rows to the device."""
    x, b = pt.matrix("x"), pt.vector("b")
    w = pytensor.shared(np.ones(30), name="w")
    with session_of(n):
        f = synk.function(
            [x],
            [x.sum(), (w.sum(), None)],
            bcast_inputs=[b],
            updates={w: w + b - synk.ops.all_reduce(x.mean(axis=0))},
            mode="JAX",
        )
        values = np.ones((20 * n, 30))  # on each rank 20: compiled once for all n
        data = synk.data(values)
        f(values, np.zeros(30))
        before = SESSION.run(worker_compilations)
        for rows in (values, data):
            f(rows, np.zeros(30))
            f(rows, np.zeros(30), batch=np.arange(20 * n)[::-1])
            f.run([slice(0, 20 * n)] * 3, rows, np.zeros(30))
        w.set_value(np.ones(30))
        synk.broadcast(w)
        f(data, np.zeros(30))
        assert SESSION.run(worker_compilations) == before


def worker_compilations(context):
    """Return how often XLA has compiled on this rank, from the first look on."""
    import jax

    if not hasattr(worker_compilations, "names"):
        worker_compilations.names = []

        def listen(event, seconds, **options):
            if event.endswith("backend_compile_duration"):
                worker_compilations.names.append(event)

        jax.monitoring.register_event_duration_secs_listener(listen)
    return len(worker_compilations.names)


@in_a_child
def test_calls_in_which_a_rank_compiles_for_a_new_shape_are_not_counted():
    """On any rank, as the others wait for it; one by one, and in a run."""
    x = pt.matrix("x")
    with synk.session(2):
        f = synk.function([x], x.sum(), mode="JAX")
        for rows in (8, 8, 7, 7, 8):  # rank 1 has 4, 4, 3, 3 and 4 of them
            f(np.ones((rows, 3)))
        calls = f.explain().to_dict()["calls"]
        assert (calls["counted"], calls["left_out"]) == (3, 2)
        assert [row["share"] for row in calls["ranks"]] == [4, 11 / 3]
        f.run([8, 8, 6, 5, 5, 8], np.ones((8, 3)))  # 6 and 5 are new, on one rank each
        calls = f.explain().to_dict()["calls"]
        assert (calls["counted"], calls["left_out"]) == (7, 4)
        f(np.ones((8, 4)))
        calls = f.explain().to_dict()["calls"]
        assert (calls["counted"], calls["left_out"]) == (7, 5)
        padded = synk.function([x], x.sum(), mode="JAX", pad=True)
        for rows in (8, 7, 6, 5, 3, 9):  # code for 4 rows serves 2, 3 and 4
            padded(np.ones((rows, 3)))
        calls = padded.explain().to_dict()["calls"]
        assert (calls["counted"], calls["left_out"]) == (3, 3)


@pytest.mark.parametrize("n", SIZES)
@in_a_child
def test_outputs_are_numpys_and_the_callers(n):
    x = pt.matrix("x")
    rows = np.arange(14.0).reshape(7, 2)
    with synk.session(n):
        f = synk.function(
            [x], [(x, "gather"), (x.mean(), "avg"), x.sum(), (x[0], None)], mode="JAX"
        )
        first, *others = f(rows)
        assert all(type(output) is np.ndarray for output in (first, *others))
        first[...] = -1
        second = f(rows + 1)[0]
    assert (first == -1).all()
    np.testing.assert_array_equal(second, rows + 1)


@pytest.mark.parametrize("n", SIZES)
@in_a_child
def test_functions_of_both_modes_share_variables(n):
    x = pt.matrix("x")
    w = pytensor.shared(np.zeros((2, 3)), name="w")
    rows = np.arange(10.0).reshape(5, 2)
    with synk.session(n):
        by_jax = synk.function([x], (x @ w).sum(), updates=[(w, w + 1)], mode="JAX")
        by_python = synk.function([x], (x @ w).sum(), updates=[(w, w * 2)], mode=PY)
        value = 0.0
        for f in (by_jax, by_python, by_python, by_jax, by_jax, by_python):
            np.testing.assert_allclose(f(rows), 3 * value * rows.sum())
            value = value + 1 if f is by_jax else value * 2
        for rank in range(n):
            np.testing.assert_array_equal(
                synk.get_value(rank, w), np.full((2, 3), value)
            )
        synk.all_reduce(w, "sum")  # its value lies in shared memory now
        np.testing.assert_allclose(by_jax(rows), 3 * n * value * rows.sum())
        w.set_value(np.ones((2, 3)))
        synk.broadcast(w)
        np.testing.assert_allclose(by_jax(rows), 3 * rows.sum())


@in_a_child
def test_a_value_that_the_user_writes_to_is_not_jaxs_own():
    x = pt.vector("x")
    mine = np.zeros(1 << 16)
    s = pytensor.shared(mine, borrow=True)
    with synk.session(1):
        f = synk.function([x], s.sum() + x.sum(), mode="JAX")
        assert f([0.0]) == 0
        mine[...] = 1
        assert f([0.0]) == 0


@pytest.mark.parametrize("n", SIZES)
@in_a_child
def test_no_number_is_drawn_twice(n):
    """Not by other ranks, calls, slices, nor by other functions of the same stream."""
    x = pt.vector("x")
    rng = stream()
    after, drawn = noise(rng, x)
    with synk.session(n):
        f, g = (
            synk.function([x], (drawn, "gather"), updates=[(rng, after)], mode="JAX")
            for _ in range(2)
        )
        ones = np.ones(11)
        numbers = [f(ones), g(ones), f(ones), f(ones, num_slices=3), g(ones)]
    numbers = np.concatenate(numbers)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert len(set(numbers)) == 55


@in_a_child
def test_a_stream_that_is_not_updated_repeats_itself():
    x = pt.vector("x")
    rng = stream()
    with synk.session(2):
        f = synk.function([x], (noise(rng, x)[1], "gather"), mode="JAX")
        np.testing.assert_array_equal(f(np.ones(5)), f(np.ones(5)))


@pytest.mark.parametrize("n", [1, 2])
@in_a_child
def test_a_seed_repeats_a_run_and_a_checkpoint_continues_it(n, tmp_path):
    x = pt.vector("x")
    ones = np.ones(9)

    def make(seed):
        rng = stream(seed)
        after, drawn = noise(rng, x)
        f = synk.function([x], (drawn, "gather"), updates=[(rng, after)], mode="JAX")
        return f, {"stream": rng}

    with synk.session(n):
        f, streams = make(5)
        same, _ = make(5)
        other, _ = make(6)
        first = f(ones)
        np.testing.assert_array_equal(first, same(ones))
        assert not np.isin(first, other(ones)).any()
        synk.save(tmp_path / "streams.npz", streams)
        rest = [f(ones) for _ in range(3)]
        resumed, streams = make(7)
        resumed(ones)
        synk.load(tmp_path / "streams.npz", streams)
        np.testing.assert_array_equal(rest, [resumed(ones) for _ in range(3)])


@pytest.mark.parametrize("n", SIZES)
@in_a_child
def test_a_training_step_is_the_serial_one(n):
    """With gradients reduced between two stages, slices, and more ranks than rows."""
    random = np.random.default_rng(0)
    x, y = pt.matrix("x"), pt.ivector("y")
    start = random.normal(size=(4, 3))
    rows, labels = random.normal(size=(10, 4)), random.integers(0, 3, 10).astype("i4")

    def make(grad, function, **options):
        w = pytensor.shared(start.copy(), name="w")
        p = pt.special.softmax(x @ w, axis=1)
        loss = -pt.log(p[pt.arange(y.shape[0]), y]).mean()
        step = [(w, w - 0.5 * grad(loss, w))]
        return function([x, y], loss, updates=step, **options), w

    plain, expected = make(pytensor.grad, pytensor.function, mode=PY)
    with synk.session(n):
        f, w = make(synk.grad, synk.function, mode="JAX")
        # Slices of one row each, where there are three ranks.
        for count, num_slices in ((10, 1), (10, 4), (2, 1), (1, 1)):
            loss = f(rows[:count], labels[:count], num_slices=num_slices)
            np.testing.assert_allclose(loss, plain(rows[:count], labels[:count]))
        for rank in range(n):
            found = synk.get_value(rank, w)
            np.testing.assert_allclose(found, expected.get_value(), rtol=1e-12)


@in_a_child
def test_an_explanation_counts_the_shapes_that_were_compiled():
    x = pt.matrix("x")
    with synk.session(2):
        f = synk.function([x], x.sum(), mode="JAX")
        assert "compiled    by JAX" not in str(f.explain())
        for rows in (4, 6, 4, 7):  # rank 0 has 2, 3, 2 and 4 of them
            f(np.ones((rows, 3)))
        assert f.explain().to_dict()["shapes_compiled"] == 3
        assert "compiled    by JAX, on rank 0 for 3 shapes" in str(f.explain())
        g = synk.function([x], x.sum(), mode=PY)
        g(np.ones((4, 3)))
        assert g.explain().to_dict()["shapes_compiled"] is None


def worker_lies_on_device(context, number):
    """Tell whether this rank's value of a variable is an array of JAX's."""
    import jax

    variable = context.registry.variables[number]
    value = variable.get_value(borrow=True, return_internal_type=True)
    return isinstance(value, jax.Array)


@pytest.mark.parametrize("n", [1, 2])
@in_a_child
def test_rows_of_shared_variables_are_taken_where_they_lie(n):
    mine = 10  # on each rank: XLA compiles once for all n
    rows = np.arange(30.0 * n).reshape(mine * n, 3)
    s = pytensor.shared(np.zeros((0, 3)), name="s")
    with session_of(n):
        synk.scatter(s, rows)
        f = synk.function([], (s.sum(axis=0), "sum"), sliceable_shareds=[s], mode="JAX")
        for chosen in (
            slice(0, 4),
            slice(3, mine),
            slice(0, mine),
            slice(1, mine, 3),
            slice(5, 5),
            np.array([7, 0, 7, 3]),
            np.arange(mine) % 2 == 0,
        ):
            parts = [rows[rank * mine : (rank + 1) * mine][chosen] for rank in range(n)]
            expected = np.concatenate(parts).sum(axis=0)
            np.testing.assert_array_equal(f(batch_s=chosen), expected)
            np.testing.assert_array_equal(f(batch_s=chosen, num_slices=2), expected)
        np.testing.assert_array_equal(f(), rows.sum(axis=0))
        number = SESSION.numbers[s]
        assert SESSION.run(worker_lies_on_device, number) == [True] * n


@in_a_child
def test_shapes_that_another_stage_knows_are_known_to_jax():
    """The gradient of a reshape needs a shape that the stage before has computed."""
    random = np.random.default_rng(0)
    x = pt.tensor3("x")
    w = pytensor.shared(random.normal(size=(4, 6)), name="w")

    def make(all_reduce, grad):
        hidden = x @ w
        hidden = pt.tanh(hidden - all_reduce(hidden.mean((0, 1))))
        loss = (hidden.flatten(2).mean(axis=1) ** 2).mean()
        return [loss, grad(loss, w)]

    loss, gradient = make(synk.ops.all_reduce, synk.grad)
    plain = pytensor.function([x], make(lambda value: value, pytensor.grad), mode=PY)
    with synk.session(2):
        f = synk.function([x], [(loss, "avg"), (gradient, None)], mode="JAX")
        for shape in ((6, 3, 4), (4, 2, 4)):
            rows = random.normal(size=shape)
            for found, expected in zip(f(rows), plain(rows), strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_64_bits_stay_64_whatever_floatX_is():
    pytest.importorskip("jax", reason="JAX, of the extra synk[jax], is missing")
    script = """
import warnings; warnings.simplefilter("error")
import numpy as np, pytensor.tensor as pt, synk
x, i = pt.dvector("x"), pt.lvector("i")
f = synk.function([x, i], [x + 1, i * 2, (pt.arange(i.shape[0]), None)], mode="JAX")
with synk.session(1):
    y, j, k = f([2.0**-40], [2**40])
assert y.dtype == "float64" and y[0] == 1 + 2.0**-40
assert j.dtype == k.dtype == "int64" and j[0] == 2**41
"""
    env = {**os.environ, "PYTENSOR_FLAGS": "floatX=float32"}
    subprocess.run([sys.executable, "-c", script], check=True, timeout=100, env=env)


@in_a_child
def test_the_rows_of_all_ranks_are_counted_on_all():
    x = pt.vector("x")
    total = synk.ops.all_reduce(x.sum(), "sum")
    mean = total / synk.ops.all_reduce(x.shape[0], "sum")
    with synk.session(3):
        f = synk.function([x], (mean, None), mode="JAX")
        for rows in (7, 2, 9):
            np.testing.assert_allclose(f(np.arange(float(rows))), (rows - 1) / 2)


@in_a_child
def test_values_have_the_dtypes_that_the_graph_declares():
    x, i = pt.fmatrix("x"), pt.ivector("i")
    outputs = [
        *(x.sum(), x.mean(axis=0), x.var(), x.prod(), x.std(), pt.sqrt((x**2).sum())),
        *(x * i[0], pt.log(i), i / 2, i.mean(), i.sum(), pt.exp(pt.cast(i, "int8"))),
        *((x > 0).mean(), pt.cast(i, "int8").sum(), i**2, x @ x.T, x.argmax(axis=1)),
    ]
    rows = np.random.default_rng(0).uniform(1, 2, (3, 4)).astype("float32")
    args = rows, np.arange(1, 4, dtype="int32")
    plain = pytensor.function([x, i], outputs, mode=PY)(*args)
    with synk.session(1):
        found = synk.function([x, i], [(o, None) for o in outputs], mode="JAX")(*args)
    for output, value, expected in zip(outputs, found, plain, strict=True):
        assert value.dtype == expected.dtype == output.type.dtype, output
        digits = 1e-14 if value.dtype == "float64" else 1e-6
        np.testing.assert_allclose(value, expected, rtol=digits, err_msg=str(output))
