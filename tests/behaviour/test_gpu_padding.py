"""Padded calls in JAX mode: the numbers of plain PyTensor, and few compilations."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child
from padding_cases import CASES, inputs, rows
from reference import PY

import synk

# What JAX gives is compared with PyTensor in Python, without compiling by numba or C.
pytestmark = pytest.mark.usefixtures("scans_in_python")


def shapes_compiled(f: synk.Function) -> int:
    return f.explain().to_dict()["shapes_compiled"]


def classifier(grad):
    """Return inputs, outputs and updates of a step of training, and its variables."""
    random = np.random.default_rng(0)
    x, y = pt.matrix("x"), pt.lvector("y")
    w = pytensor.shared(random.normal(size=(4, 3)), name="w")
    seen = pytensor.shared(np.zeros((0, 3)), name="seen")
    p = pt.special.softmax(x @ w, axis=1)
    loss = -pt.log(p[pt.arange(y.shape[0]), y]).mean()
    updates = [(w, w - 0.5 * grad(loss, w)), (seen, p)]
    return [x, y], [loss, p, p.max(axis=0)], updates, [w, seen]


@in_a_child
def test_an_epoch_with_a_short_last_batch_is_compiled_once():
    check_epochs(2)


@in_a_child
def test_a_training_step_is_the_serial_one():
    """With more ranks than rows, and slices of one row each."""
    check_epochs(3, pad=False)


def check_epochs(n, pad=True, **devices):
    """Compare epochs in a session with plain PyTensor, and count compilations."""
    variables, outputs, updates, shared = classifier(synk.grad)
    updates[1] = (*updates[1], None)
    like, expected, steps, serial = classifier(pytensor.grad)
    plain = pytensor.function(like, expected, updates=steps, mode=PY)
    # Ranks have 6 rows, whatever their number: XLA compiles for one size in all tests.
    data = rows(18 * n)[:2]
    batches = [slice(0, 6 * n), slice(6 * n, 12 * n), slice(12 * n, 17 * n - 1)]

    def check(found, some):
        right = plain(*(array[some] for array in data))
        for got, value in zip(found, right, strict=True):
            np.testing.assert_allclose(got, value, rtol=1e-10)

    with synk.session(n, **devices):
        f = synk.function(variables, outputs, updates=updates, mode="JAX", pad=pad)
        for batch in batches * 2:
            check(f(*data, batch=batch), batch)
        found = f.run(batches, *data)
        for k, batch in enumerate(batches):
            check([value[k] for value in found], batch)
        mine = len(np.array_split(np.arange(5 * n - 1), n)[0])
        np.testing.assert_allclose(shared[1].get_value(), found[1][2][:mine])
        assert shapes_compiled(f) == (1 if pad else 2)
        # Fewer rows than ranks, and other numbers of slices.
        for count in (2 * n + 1, 1, 4 * n + 1) if pad else (2 * n, 1):
            cut = [array[:count] for array in data]
            check(f(*cut, num_slices=1 + count // 5), slice(count))
        for rank in range(n):
            value = synk.get_value(rank, shared[0])
            np.testing.assert_allclose(value, serial[0].get_value(), 1e-10)


@in_a_child
def test_jax_gives_for_padded_rows_what_pytensor_gives_without():
    variables = inputs()
    options = {"on_unused_input": "ignore"}
    with synk.session(1):
        for make in map(CASES.get, ("statistics", "convolution")):
            outputs = [(output, None) for output in make(*variables)]
            f = synk.function(variables, outputs, mode="JAX", pad=True, **options)
            plain = pytensor.function(variables, make(*variables), mode=PY, **options)
            for count in (6, 4):
                arrays = rows(count)
                found, expected = f(*arrays), plain(*arrays)
                for (out, _), got, value in zip(outputs, found, expected, strict=True):
                    assert got.dtype == value.dtype
                    text = f"{make.__name__}, {out}"
                    np.testing.assert_allclose(got, value, 1e-9, 1e-12, err_msg=text)
            assert shapes_compiled(f) == 1


@in_a_child
def test_what_one_rank_pads_compiles_and_explains():
    x = pt.matrix("x")
    with synk.session(1):
        f = synk.function([x], x.sum(), mode="JAX", pad=True)
        assert f.explain().to_dict()["padding"] == {"padded": True, "reason": None}
        assert "padded      calls of fewer rows" in str(f.explain())
        assert f(np.ones((0, 2))) == 0
        g = synk.function([x], (pt.sort(x, axis=0), None), mode="JAX", pad=True)
        assert "padded      no: SortOp" in str(g.explain())
        for count in (4, 3):
            given = np.arange(count)[:, None]
            np.testing.assert_array_equal(g(given[::-1]), given)
        assert shapes_compiled(g) == 2
        h = synk.function([x], x.sum(), mode=PY, pad=True)
        assert "no: this mode compiles once for all shapes" in str(h.explain())
        assert h(np.ones((3, 2))) == 6
        k = synk.function([x], x.sum(), mode="JAX")
        assert k.explain().to_dict()["padding"] is None
        # Fused with what is no size, lengths would be values, which JAX does not know.
        outputs = [x.reshape((-1,)).mean(), pt.repeat(x, 2, axis=0).mean()]
        f = synk.function([x], outputs, mode="JAX", pad=True)
        for count in (6, 4):
            value = rows(count)[0]
            np.testing.assert_allclose(f(value), value.mean(), 1e-10)
        assert shapes_compiled(f) == 1


@in_a_child
def test_two_ranks_pad_stages_and_rows_that_they_have():
    with synk.session(2):
        check_stages()
        check_sliceable_rows(2)


def check_stages():
    """Statistics of all ranks, gradients through them, and sizes of other stages."""
    x = pt.tensor3("x")
    w = pytensor.shared(np.random.default_rng(0).normal(size=(4, 6)), name="w")

    def make(all_reduce, grad):
        hidden = pt.tanh(x @ w)
        centred = hidden - all_reduce(hidden.mean((0, 1)))
        scaled = centred / pt.sqrt(all_reduce(pt.sqr(centred).mean((0, 1))) + 0.1)
        loss = (scaled.flatten(2).max(axis=1) ** 2).mean()
        return [loss, scaled, grad(loss, w), centred.sum(axis=1)]

    serial = make(lambda value: value, pytensor.grad)
    plain = pytensor.function([x], serial, mode=PY)
    loss, scaled, gradient, sums = make(synk.ops.all_reduce, synk.grad)
    outputs = [(loss, "avg"), (scaled, "gather"), gradient, (sums, "gather")]
    f = synk.function([x], outputs, mode="JAX", pad=True)
    for count in (8, 5):
        values = rows(count)[2]
        for got, right in zip(f(values), plain(values), strict=True):
            np.testing.assert_allclose(got, right, rtol=1e-9, atol=1e-13)
    assert f.explain().to_dict()["padding"]["padded"]


def check_sliceable_rows(n):
    values = np.arange(60.0).reshape(20, 3)
    s, t = (pytensor.shared(np.zeros((0, 3)), name=name) for name in "st")
    synk.scatter([s, t], [values, values**2])
    outputs = [((s * t).sum(axis=0), "sum"), (s.mean(), "avg"), (t, "gather")]
    f = synk.function([], outputs, sliceable_shareds=[s, t], mode="JAX", pad=True)
    each = 20 // n
    for batch in (slice(0, 8), slice(2, 7), np.array([3, 0, 7, 3, 1])):
        took = [values[r * each : (r + 1) * each][batch] for r in range(n)]
        took = np.concatenate(took)
        total, mean, gathered = f(batch_s=batch)
        np.testing.assert_allclose(total, (took**3).sum(axis=0))
        np.testing.assert_allclose(mean, took.mean())
        np.testing.assert_array_equal(gathered, took**2)
    assert shapes_compiled(f) == 1
