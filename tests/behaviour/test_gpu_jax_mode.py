"""JAX mode: rows, shared variables, random streams, shapes, indices, code on disk."""

import itertools
import json
import os
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child, run_python
from reference import PY

import synk

# What JAX gives is compared with PyTensor in Python, without compiling by numba or C.
pytestmark = pytest.mark.usefixtures("scans_in_python")


def session_of(n: int):
    """Return a session; the tests that have it run on GPUs as well."""
    return synk.session(n)


def stream(seed: int = 5):
    return pytensor.shared(np.random.default_rng(seed), name="stream")


@in_a_child
def test_a_call_has_read_its_rows_when_the_next_one_takes_others():
    """JAX computes on after a call, from memory that the next call's rows go to."""
    x, once = pt.matrix("x"), pytensor.shared(np.eye(300))
    total = pytensor.shared(np.zeros(()))
    product = x
    for _ in range(6):
        product = product @ once
    updates = [(total, total + product.sum(), "sum")]
    with synk.session(2):
        add = synk.function([x], updates=updates, mode="JAX")
        data = synk.data(np.arange(6.0).repeat(600)[:, None] * np.ones(300))
        for i in range(6):
            add(data, batch=np.arange(600 * i, 600 * (i + 1)))
        synk.all_reduce(total, "sum")
        assert float(total.get_value()) == 600 * 300 * sum(range(6))


@in_a_child
def test_the_host_does_no_work_in_python_for_each_variable_of_a_step():
    def calls(many: int) -> int:
        """Return how many functions of Python a call enters that updates so many."""
        variables = [pytensor.shared(np.ones(3)) for _ in range(many)]
        updates = [(var, var + x.sum()) for var in variables]
        step, entered = synk.function([x], updates=updates, mode="JAX"), []
        for _ in range(4):
            step(rows)
        sys.setprofile(lambda _, event, __: event == "call" and entered.append(1))
        step(rows)
        sys.setprofile(None)
        for var in variables:
            np.testing.assert_array_equal(var.get_value(), np.full(3, 1.0 + 5 * 6))
        return len(entered)

    x, rows = pt.vector("x"), np.arange(4.0)
    with synk.session(1):
        assert calls(110) < calls(10) + 50  # it was 9 for each


@pytest.mark.parametrize("n", [1, 2])
@in_a_child
def test_what_outlives_a_call_is_not_in_memory_that_is_used_again(n):
    """Shared variables that are set to inputs, and outputs that are inputs."""
    x, b = pt.matrix("x"), pt.matrix("b")
    s, t, r, before = (pytensor.shared(np.zeros((1, 64)), name) for name in "strb")
    updates = {s: x, t: b, r: x.reshape((-1, 64)), before: s}
    first = np.arange(64.0 * 64).reshape(64, 64)
    second = first + 1e6
    batches = slice(0, 48), np.arange(63, 15, -1)
    with session_of(n):
        for local in (False, True):
            options = {"updates": updates, "mode": "JAX", "local": local}
            f = synk.function([x], (x, "gather"), [b], **options)
            synk.broadcast(s)
            for batch, make in itertools.product(batches, (synk.data, np.array)):
                X, B = make(first), make(first)
                whole = f(X, B, batch=batch)
                X[:], B[:] = second, second
                np.testing.assert_array_equal(whole, first[batch])
                whole[:] = -2  # it is the caller's
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
def test_calls_in_which_a_rank_compiles_for_a_new_shape_are_not_counted():
    """On any rank, as the others wait for it; one by one, and in a run."""
    x = pt.matrix("x")
    with synk.session(2):
        f = synk.function([x], x.sum(), mode="JAX")
        assert "compiled    by JAX" not in str(f.explain())
        for rows in (8, 8, 7, 7, 8):  # rank 1 has 4, 4, 3, 3 and 4 of them
            f(np.ones((rows, 3)))
        calls = f.explain().to_dict()["calls"]
        assert (calls["counted"], calls["left_out"]) == (3, 2)
        assert [row["share"] for row in calls["ranks"]] == [4, 11 / 3]
        f.run([8, 8, 6, 5, 5, 8], np.ones((8, 3)))  # 6 and 5 are new, on one rank each
        calls = f.explain().to_dict()["calls"]
        assert (calls["counted"], calls["left_out"]) == (7, 4)
        padded = synk.function([x], x.sum(), mode="JAX", pad=True)
        for rows in (8, 7, 6, 5, 3, 9):  # code for 4 rows serves 2, 3 and 4
            padded(np.ones((rows, 3)))
        calls = padded.explain().to_dict()["calls"]
        assert (calls["counted"], calls["left_out"]) == (3, 3)
        # Rank 0 has 4 rows, and 3.
        assert f.explain().to_dict()["shapes_compiled"] == 2
        assert "compiled    by JAX, on rank 0 for 2 shapes" in str(f.explain())
        other = synk.function([x], x.sum(), mode=PY)
        other(np.ones((4, 3)))
        assert other.explain().to_dict()["shapes_compiled"] is None


@in_a_child
def test_functions_of_both_modes_share_variables():
    x, w = pt.matrix("x"), pytensor.shared(np.zeros((2, 3)), name="w")
    n, rows = 3, np.arange(10.0).reshape(5, 2)
    with synk.session(n):
        by_jax = synk.function([x], (x @ w).sum(), updates=[(w, w + 1)], mode="JAX")
        by_python = synk.function([x], (x @ w).sum(), updates=[(w, w * 2)], mode=PY)
        value = 0.0
        for f in (by_jax, by_python, by_python, by_jax, by_jax, by_python):
            np.testing.assert_allclose(f(rows), 3 * value * rows.sum())
            value = value + 1 if f is by_jax else value * 2
        for rank in range(n):
            assert (synk.get_value(rank, w) == value).all()
        synk.all_reduce(w, "sum")  # its value lies in shared memory now
        np.testing.assert_allclose(by_jax(rows), 3 * n * value * rows.sum())
        w.set_value(np.ones((2, 3)))
        synk.broadcast(w)
        np.testing.assert_allclose(by_jax(rows), 3 * rows.sum())
        # A value that the user writes to is not JAX's own.
        mine = np.zeros(1 << 16)
        s = pytensor.shared(mine, borrow=True)
        f = synk.function([x], s.sum() + x.sum(), mode="JAX")
        assert f(0 * rows) == 0
        mine[...] = 1
        assert f(0 * rows) == 0


@in_a_child
def test_streams_draw_no_number_twice_and_repeat_by_seed_and_checkpoint(tmp_path):
    """Not by other ranks, calls, slices, nor by other functions of the same stream."""
    x = pt.vector("x")

    def make(rng, is_updated=True):
        after, drawn = pt.random.uniform(size=(x.shape[0],), rng=rng).owner.outputs
        updates = [(rng, after)] if is_updated else []
        return synk.function([x], (drawn, "gather"), updates=updates, mode="JAX")

    rng = stream()
    with synk.session(3):
        f, g = make(rng), make(rng)
        ones = np.ones(11)
        numbers = [f(ones), g(ones), f(ones), f(ones, num_slices=3), g(ones)]
        drawn = np.concatenate(numbers)
        assert drawn.min() >= 0
        assert drawn.max() < 1
        assert len(set(drawn)) == 55
        still = make(rng, is_updated=False)
        np.testing.assert_array_equal(still(ones), still(ones))
        # A run is repeated by its seed, and continued from a checkpoint.
        np.testing.assert_array_equal(make(stream())(ones), numbers[0])
        assert not np.isin(make(stream(6))(ones), drawn).any()
        synk.save(tmp_path / "streams.npz", {"stream": rng})
        rest = [f(ones) for _ in range(3)]
        other = stream(7)
        resumed = make(other)
        resumed(ones)
        synk.load(tmp_path / "streams.npz", {"stream": other})
        np.testing.assert_array_equal(rest, [resumed(ones) for _ in range(3)])


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
    run_python("-c", script, PYTENSOR_FLAGS="floatX=float32")


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
        assert type(value) is np.ndarray, output
        assert value.dtype == expected.dtype == output.type.dtype, output
        digits = 1e-14 if value.dtype == "float64" else 1e-6
        np.testing.assert_allclose(value, expected, rtol=digits, err_msg=str(output))


# -- indices out of range

x, k, i = pt.dmatrix("x"), pt.lvector("k"), pt.lscalar("i")
rows = pt.arange(x.shape[0])

GRAPHS = {
    "labels": x[rows, k].sum(),
    "their gradient": pytensor.grad((x[rows, k] ** 2).sum(), x),
    "a table's rows": pt.as_tensor(np.arange(9.0).reshape(3, 3))[k].sum(axis=1),
    "put": pt.set_subtensor(x[rows, k], 7.0),
    "one column": x[:, i],
    "the last but one": x[:, -2] + k,
    "of bytes": x[rows, pt.cast(k, "int8")],
    "of unsigned bytes": x[:, pt.cast(pt.maximum(k, 0), "uint8")],
    "the next one": x[:, i + 1] * (k + 1),
}


@in_a_child
def test_an_index_out_of_range_is_an_error_where_it_is_one_in_numpy():
    options = {"on_unused_input": "ignore"}
    values, refused = np.arange(12.0).reshape(4, 3), dict.fromkeys(GRAPHS, 0)
    with synk.session(1):
        for what, graph in GRAPHS.items():
            f = synk.function([x, k], graph, [i], mode="JAX", local=True, **options)
            plain = pytensor.function([x, k, i], graph, mode=PY, **options)
            for index in (1, 2, -3, 3, -4, 100):
                given = values, np.array([0, 2, index, 1]), index
                try:
                    right = plain(*given)
                except IndexError:
                    refused[what] += 1
                    with pytest.raises(IndexError, match="an index is out of range"):
                        f(*given)
                else:
                    np.testing.assert_array_equal(f(*given), right, what)
    others = {"the last but one": 0, "of unsigned bytes": 2}
    assert refused == dict.fromkeys(GRAPHS, 3) | others


@in_a_child
def test_a_wrong_label_changes_nothing():
    w = pytensor.shared(np.eye(3), "w")
    p = pt.special.log_softmax(x @ w, axis=1)
    loss = -p[rows, k].mean()
    update = w - 0.1 * pytensor.grad(loss, w)
    f = synk.function([x, k], loss, updates=[(w, update)], mode="JAX")
    values = np.arange(12.0).reshape(4, 3)
    with synk.session(2):
        f(values, [0, 1, 2, 0])
        before = w.get_value()
        line = r"test_gpu_jax_mode.py:\d+: `loss = "
        with pytest.raises(IndexError, match=line) as caught:
            f(values, [0, 1, 2, 3])
        assert "on rank 1 of 2" in caught.value.__notes__[-1]
        for rank in range(2):
            np.testing.assert_array_equal(synk.get_value(rank, w), before)
        f(values, [0, 1, 2, 2])


# -- what XLA compiles is found by the next run of a script, with nothing said

SCRIPT = """
import collections, json, sys
import jax, numpy as np, pytensor, pytensor.tensor as pt
import synk

heard = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: heard.update([event]))
x, y = pt.matrices("xy")
w = pytensor.shared(0.1 * np.ones((20, 20)), "w")
z = pt.tanh(x @ w) + pt.exp(-(x @ w) ** 2)
loss = ((z - y) ** 2).mean()
updates = [(w, w - 0.1 * pytensor.grad(loss, w))]
step = synk.function([x, y], loss, mode="JAX", updates=updates)
values = np.random.default_rng(0).normal(size=(2, 8, 20))
with synk.session(int(sys.argv[1])):
    losses = [float(step(*values)) for _ in range(3)]
print(json.dumps([losses, heard["/jax/compilation_cache/cache_hits"]]))
"""


@pytest.fixture
def run(tmp_path):
    jax = pytest.importorskip("jax", reason="JAX, of the extra synk[jax], is missing")
    if jax.__version_info__ < (0, 10, 2):
        pytest.skip("this version of JAX prints errors as it reads its cache")

    told = {key: None for key in os.environ if key[:4] == "JAX_"}
    flags = os.environ.get("PYTENSOR_FLAGS", "")
    told["PYTENSOR_FLAGS"] = f"{flags},base_compiledir={tmp_path}".lstrip(",")
    told["JAX_PLATFORMS"] = "cpu"

    def run(ranks=1, **environment):
        done = run_python("-c", SCRIPT, ranks, **told | environment)
        assert not done.stderr, done.stderr  # XLA's complaints come here
        return json.loads(done.stdout)

    return run


def test_the_next_run_finds_the_code_of_every_rank(run, tmp_path):
    first, hits = run(ranks=2)
    assert not hits
    folders = set((tmp_path / "synk-xla").iterdir())
    again, hits = run(ranks=2)
    assert (again, hits > 0) == (first, True)
    assert folders == set((tmp_path / "synk-xla").iterdir())
    for path in (tmp_path / "synk-xla").glob("*/*-cache"):
        path.write_bytes(b"")  # as of a machine that went down
    again, hits = run(ranks=2)
    assert (again, hits) == (first, 0)


def test_what_a_script_says_of_jax_s_cache_counts(run, tmp_path):
    losses, _ = run(JAX_COMPILATION_CACHE_DIR=str(tmp_path / "mine"))
    assert not (tmp_path / "synk-xla").exists()
    (tmp_path / "synk-xla").write_text("")  # no folder can be made: all goes on
    assert run()[0] == losses
