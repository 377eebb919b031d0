"""Terms of the data alone are kept from call to call, while the data is the same."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.ops import wrap_py
from pytensor.graph.replace import clone_replace
from reference import PY

import synk
from synk.call import engines, repeats
from synk.choice import records
from synk.compiler.kept import with_kept
from synk.compiler.stages import cut

ROWS = 12


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Have terms kept from the third call with the same rows on."""
    monkeypatch.setattr(repeats, "WORTH", 1e-12)
    monkeypatch.setattr(repeats, "FEW", 0)


def likelihood(mode=PY, **options):
    x, y, w = pt.matrix("x"), pt.vector("y"), pt.vector("w")
    eta = x @ w
    logp = (y * eta - pt.exp(eta) - pt.gammaln(y + 1)).sum()
    outputs = [logp, pt.grad(logp, w)]
    return synk.function([x, y], outputs, bcast_inputs=[w], mode=mode, **options)


def expected(x, y, w):
    return pytensor.function([], _graph(x, y, w), mode=PY)()


def _graph(x, y, w):
    x, y, w = np.array(x), np.array(y), pt.as_tensor(w)
    eta = pt.as_tensor(x) @ w
    logp = (y * eta - pt.exp(eta) - pt.gammaln(y + 1.0)).sum()
    return [logp, pt.grad(logp, w)]


def some_data():
    rng = np.random.default_rng(1)
    y = rng.poisson(3.0, ROWS).astype(float)
    return synk.data(rng.normal(size=(ROWS, 2)), name="x"), synk.data(y, name="y")


def kept_of(f):
    """Return what rank 0 keeps of a function."""
    return list(f._engines.present.local().kept_terms._values.values())


def warm(f, *args, **options):
    for _ in range(4):
        result = f(*args, **options)
    return result


W = np.array([0.3, -0.2])


def check(f, x, y, **options):
    found = f(x, y, W, **options)
    for mine, theirs in zip(found, expected(x, y, W), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)


@pytest.mark.parametrize(
    ("ranks", "mode"), [(1, PY), (3, PY), (2, "CVM")], ids=["1", "3", "2-in-c"]
)
def test_a_term_is_kept_and_the_results_stay(ranks, mode):
    f = likelihood(mode)
    with synk.session(ranks):
        x, y = some_data()
        first = f(x, y, W)
        last = warm(f, x, y, W)
        (term,) = kept_of(f)
        assert len(term) == ROWS // ranks
        for mine, theirs in zip(last, first, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-12)
        term += 1.0  # which shows that it is used
        assert np.isclose(f(x, y, W)[0], first[0] - ROWS // ranks)
        f(x, y, 2 * W)
        assert kept_of(f)[0] is term


def by_a_view_from_before(x, y):
    y._early[1] = 5


def by_a_thread(x, y):
    thread = threading.Thread(target=y.__setitem__, args=(2, 7.0))
    thread.start()
    thread.join()


def by_a_child(x, y):
    """A child of the script's has the same memory, and says nothing."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            y[3] = 9
        os._exit(0)
    os.waitpid(pid, 0)


def by_an_address(x, y):
    """Whoever does this is told to read `data` afterwards."""
    address = y.data.ctypes.data
    ctypes.c_double.from_address(address).value = 6.0
    assert len(y.data) == ROWS


WAYS = {
    "an element": lambda x, y: y.__setitem__(0, 40),
    "a slice": lambda x, y: y.__setitem__(slice(3, 6), [1, 2, 3]),
    "x[...]": lambda x, y: y[2:4].fill(2),
    "its data": lambda x, y: y.data.__iadd__(1),
    "numpy": lambda x, y: np.copyto(np.asarray(y), np.arange(ROWS)),
    "a memoryview": lambda x, y: memoryview(y.data).__setitem__(0, 3.0),
    "a reshaped view": lambda x, y: y.data.reshape(3, 4)[1].fill(1),
    "set_value": lambda x, y: y.set_value(np.arange(ROWS) + 2.0),
    "other data": lambda x, y: y.set_value(synk.data(np.ones(ROWS))),
    "a length and back": lambda x, y: (y.set_length(5), y.set_length(ROWS)),
    "new memory": lambda x, y: (y.free_memory(), y.set_value(np.ones(ROWS))),
    "a view from before": by_a_view_from_before,
    "a thread": by_a_thread,
    "a child": by_a_child,
    "an address": by_an_address,
}


@pytest.fixture
def two_ranks():
    with synk.session(2):
        yield


def test_tuning_does_not_wait_for_more_calls(two_ranks, monkeypatch, tmp_path):
    monkeypatch.setenv("SYNK_ENGINE", "auto")
    monkeypatch.setattr(records, "_path", lambda key: tmp_path / f"{key}.json")
    monkeypatch.setattr(engines, "engines_for", lambda spec: ["numba"])
    monkeypatch.setattr(repeats, "WORTH", 1e9)
    monkeypatch.setitem(engines.MODES, "numba", PY)
    f, (x, y) = likelihood(mode=None), some_data()
    warm(f, x, y, W)
    assert not kept_of(f)
    synk.tune(f, x, y, W)
    check(f, x, y)
    assert kept_of(f)


def test_what_is_written_is_seen(two_ranks):
    f = likelihood()
    for name, write in WAYS.items():
        x, y = some_data()
        y._early = y[:] if name == "a view from before" else None
        warm(f, x, y, W)
        assert kept_of(f), name
        before = np.array(y)
        write(x, y)
        assert (before != np.array(y)).any(), name
        for _ in range(4):
            check(f, x, y)


def test_nothing_is_kept_while_a_view_lives(two_ranks):
    f, (x, y) = likelihood(), some_data()
    view = y.data.reshape(4, 3).T[1:][::-1]
    warm(f, x, y, W)
    assert not kept_of(f)
    view[0, 0] = 8
    check(f, x, y)
    del view
    warm(f, x, y, W)
    assert kept_of(f)


def test_nothing_is_kept_when_the_script_has_forked(two_ranks):
    f, (x, y) = likelihood(), some_data()
    by_a_child(x, y)
    warm(f, x, y, W)
    assert not kept_of(f)
    newer = synk.data(y)  # which no child has
    warm(f, x, newer, W)
    assert kept_of(f)


def test_data_from_before_a_session_is_kept():
    f, (x, y) = likelihood(), some_data()
    with synk.session(2):
        warm(f, x, y, W)
        assert kept_of(f)


def test_terms_are_those_of_the_rows_and_the_data(two_ranks):
    f, (x, y) = likelihood(), some_data()
    others = some_data()
    others[1][:] = np.arange(ROWS)
    for rows in (slice(0, 8), slice(4, 12), slice(4, 12), None, [5, 1, 7, 0]):
        index = slice(None) if rows is None else rows
        for mine in ((x, y), others) * 2:
            warm(f, *mine, W, batch=rows)
            found = f(*mine, W, batch=rows)
            right = expected(mine[0][index], mine[1][index], W)
            np.testing.assert_allclose(found[0], right[0], rtol=1e-12)


def test_arrays_that_are_no_data_are_not_kept(two_ranks):
    f, (x, y) = likelihood(), some_data()
    warm(f, np.array(x), np.array(y), W)
    assert not kept_of(f)


def test_an_output_that_is_a_term_belongs_to_the_caller(two_ranks):
    y, w = pt.vector("y"), pt.scalar("w")
    term = pt.gammaln(y)
    f = synk.function([y], [term, (term * w).sum()], bcast_inputs=[w], mode=PY)
    _, data = some_data()
    data[:] = np.arange(3, 3 + ROWS)
    found, total = warm(f, data, 2.0)
    found[...] = 0
    again, same = f(data, 2.0)
    assert again.any()
    assert same == total


def test_terms_of_a_later_stage_and_updates(two_ranks):
    y, w = pt.vector("y"), pytensor.shared(np.array(0.5), name="w")
    term = pt.log1p(y)
    far = term - term.mean() * w  # behind a meeting of the ranks
    loss = (far**2).mean()
    updates = {w: w - 0.1 * pt.grad(loss, w)}
    f = synk.function([y], [loss], updates=updates, mode=PY)
    v = pytensor.shared(np.array(0.5))
    plain = pytensor.function([y], [clone_replace(loss, {w: v})], mode=PY)
    _, data = some_data()
    for _ in range(6):
        v.set_value(w.get_value())
        np.testing.assert_allclose(f(data), plain(np.array(data)), rtol=1e-12)
    assert kept_of(f)


def test_what_is_larger_than_the_rows_is_not_kept(two_ranks):
    y, w = pt.vector("y"), pt.scalar("w")
    table = pt.gammaln(y[:, None] + np.arange(5.0))
    f = synk.function([y], (table * w).sum(), bcast_inputs=[w], mode=PY)
    data = synk.data(np.ones(10_000))
    right = f(data, 1.0)
    assert warm(f, data, 1.0) == right
    assert not kept_of(f)


# -- which terms


@wrap_py(itypes=[pt.dvector], otypes=[pt.dvector])
def users_op(v):
    return v + 1


X, Y, V, P = pt.matrix("X"), pt.vector("Y"), pt.vector("V"), pt.vector("p")
STREAM = pt.random.default_rng(3)

TERMS = {
    "gammaln": ((pt.gammaln(Y + 1) * P[0]).sum(), 1),
    "of two inputs": ((pt.log(Y) * V).sum() * P, 1),
    "standardised": (((X - 1.5) / 2.0) @ P, 1),
    "a product": ((X.T @ X) @ P, 1),
    "a sum of rows": (Y.sum() * P, 1),
    "cheap": (((Y + 1) * 2 * P[0]).sum(), 0),
    "an exponential that is added to others": (pt.log(pt.exp(Y) + pt.exp(P)), 0),
    "the same, scaled": (pt.log(2 * pt.exp(Y) + pt.exp(P)), 0),
    "behind it": (pt.log(pt.exp(pt.gammaln(Y)) + pt.exp(P)), 1),
    "a user's op": (users_op(Y) * P[0], 0),
    "drawn": (STREAM.normal(Y)[1] * P[0], 0),
    "a parameter enters": (pt.gammaln(Y + P[0]), 0),
    "of shapes": (pt.ones_like(Y) * pt.arange(Y.shape[0]) * P[0], 0),
    "nothing else": (pt.exp(P), 0),
}


@pytest.mark.parametrize("name", TERMS)
def test_what_is_kept(name):
    graph, terms = TERMS[name]
    f = synk.function(
        [X, Y, V], [graph.sum()], bcast_inputs=[P], on_unused_input="ignore"
    )
    spec = f._spec
    made, kept = with_kept(cut(spec, (0,), in_slices=False), spec.inputs)
    assert len(kept.wants) == terms
    received = {v for stage in made.stages for v in stage.merged.receives}
    assert set(kept.wants) <= received


def test_stable_forms_of_logarithms_stay(two_ranks):
    y, w = pt.vector("y"), pt.scalar("w")
    f = synk.function(
        [y], pt.log(pt.exp(y) + pt.exp(w)).sum(), bcast_inputs=[w], mode="CVM"
    )
    data = synk.data(np.full(4, 1000.0))
    assert warm(f, data, 999.0) == pytest.approx(4 * np.logaddexp(1000.0, 999.0))


@pytest.mark.parametrize("change", ["item", "lent", "set_value"])
@pytest.mark.parametrize("size", [2, 3])
def test_a_call_with_kept_terms_is_prepared_and_sees_a_change(size, change):
    with synk.session(size):
        f = likelihood()
        x, y = some_data()
        warm(f, x, y, W)
        assert kept_of(f)
        assert f._again is not None  # the next call only asks what has changed
        assert f._again.is_of((x, y, W), None)
        for value in (7.0, 2.0):
            if change == "item":
                y[ROWS - 1] = value
            elif change == "lent":
                np.asarray(y)[ROWS - 1] = value
            else:
                y.set_value([*np.array(y)[:-1], value])
            assert not f._again.is_of((x, y, W), None)
            for _ in range(5):
                check(f, x, y)
            assert f._again is not None


def test_what_writes_later_than_the_call_is_seen(two_ranks):
    f = likelihood()
    x, y = some_data()
    warm(f, x, y, W)
    array = np.asarray(y)  # as long as it lives, nothing is kept
    for value in (3.0, 4.0, 5.0):
        array[0] = value
        check(f, x, y)
    del array
    for _ in range(4):
        check(f, x, y)
    assert kept_of(f)


def test_a_call_of_many_rows_is_prepared_where_nothing_is_to_keep(two_ranks):
    x, w = pt.matrix("x"), pt.vector("w")
    f = synk.function([x], (x @ w).sum(), bcast_inputs=[w], mode=PY)
    data, _ = some_data()
    warm(f, data, W)
    assert not kept_of(f)
    assert f._again is not None
    data[0] = 5.0  # is read where it lies
    np.testing.assert_allclose(f(data, W), (np.array(data) @ W).sum(), rtol=1e-12)
