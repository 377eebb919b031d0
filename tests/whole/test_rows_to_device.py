"""Rows on their way to a device, with JAX on the CPU and a stand-in for CUDA's copies.

See tests/whole/gpu for the copies of CUDA.
"""

import gc
import os
import warnings

import fake_nvml
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import stand_ins
from children import in_a_child
from late_copier import LateCopier
from test_gpu_jax_mode import (  # noqa: F401  the same, with rows on the device
    test_what_outlives_a_call_is_not_in_memory_that_is_used_again,
)

import synk
from synk.engines import jax as jax_engine
from synk.memory.loading import RowLoader
from synk.memory.partition import select
from synk.memory.rows import arrived
from synk.memory.segment import Segment
from synk.memory.to_device import DeviceTaker, ToDevice
from synk.ranks.session import SESSION

DTYPES = ("float32", "float64", "float16", "int8", "uint64", "bool", "complex64")
MASK = np.arange(40) % 5 < 3
BATCHES = (
    None,
    *(slice(7, 31), slice(3, 4), slice(5, 5), slice(None, None, -1), slice(0, 40, 3)),
    *([], np.random.default_rng(0).permutation(40), [4, 4, 5, 4], MASK),
    [*range(20, 30), *range(5, 12), 39, 0],
)


@pytest.fixture(autouse=True)
def gpus(monkeypatch):
    """Pretend to have GPUs, to which all rows go by the stand-in."""
    fake_nvml.install(monkeypatch, [None] * 4)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    stand_ins.copier(monkeypatch, LateCopier)
    stand_ins.small_copies(monkeypatch)


def segment_of(values):
    """Return an array in shared memory, and its segment."""
    segment = Segment(values.nbytes)
    array = segment.array(values.dtype, values.shape)
    array[...] = values
    return array, segment


def values_of(*shape, dtype="float64"):
    return (np.random.default_rng(1).normal(size=shape) * 9).astype(dtype)


def way_of(**options):
    """Return a rank's way to its device, and its copier."""
    copier = LateCopier(**options)
    return ToDevice(lambda: copier), copier


def taken(taker, array, batch):
    """Return rows that have arrived; they are those of numpy."""
    (rows,) = arrived([taker.take(array, select(batch, len(array)))])
    expected = array[slice(None) if batch is None else batch]
    assert rows.dtype == expected.dtype
    np.testing.assert_array_equal(rows, expected)
    return rows


@in_a_child
def test_rows_on_the_device_are_those_of_numpy():
    """Runs of rows that are copied one by one, and others; pinned, or user's arrays."""
    import jax

    way = ToDevice(LateCopier)
    for width, dtype in [(3, "float32"), *((60, dtype) for dtype in DTYPES)]:
        values, taker = values_of(40, width, dtype=dtype), DeviceTaker(way)
        batches = BATCHES if dtype == "float32" else ([], [3, 0, 9])
        for array in (
            segment_of(values)[0],
            values,
            np.asfortranarray(values),
            segment_of(np.repeat(values, 2, axis=1))[0][:, ::2],
            jax.numpy.asarray(values),
        ):
            for batch in batches:
                if isinstance(array, np.ndarray):
                    rows = taken(taker, array, batch)
                    assert isinstance(rows, jax.Array) or not rows.size
                else:
                    (rows,) = arrived([taker.take(array, select(batch, 40))])
                    chosen = slice(None) if batch is None else batch
                    np.testing.assert_array_equal(rows, values[chosen])


@in_a_child
def test_rows_are_copied_in_few_pieces_to_memory_that_is_used_again():
    way, copier = way_of()
    taker = DeviceTaker(way)
    wide, _ = segment_of(values_of(40, 60))  # rows of 480 bytes
    narrow, _ = segment_of(values_of(40, 3))  # rows of 24 bytes
    for array, batch, expected in (
        (wide, slice(3, 33), [30 * 480]),
        (wide, [5, 6, 7, 2, 9, 10], [3 * 480, 480, 2 * 480]),
        (narrow, slice(3, 5), [48]),
        (narrow, [*range(10), *range(20, 30)], [240, 240]),
        (narrow, np.arange(0, 40, 2), [240, 240]),  # gathered, in pieces of ten rows
    ):
        copier.log.clear()
        taken(taker, array, batch)
        assert [f"copy {n}" for n in expected] == [e for e in copier.log if "copy" in e]
    batches = slice(0, 9), slice(9, 18), np.arange(9) * 2
    places = [taken(taker, wide, some).unsafe_buffer_pointer() for some in batches]
    assert len(set(places)) == 1
    taken(taker, wide, slice(0, 12))
    # A run has the rows of two calls on the device: those of the next are elsewhere.
    loader = RowLoader(1, 0)
    loader.use(ToDevice(LateCopier))
    last = taken(loader.rows[0][0], wide, slice(0, 5))
    for k in range(1, 8):
        rows = taken(loader.rows[k % 2][0], wide, slice(5 * k, 5 * k + 5))
        np.testing.assert_array_equal(last, wide[5 * k - 5 : 5 * k])
        last = rows


@in_a_child
def test_segments_are_pinned_as_long_as_they_are_mapped():
    way, copier = way_of()
    takers = [DeviceTaker(way) for _ in range(2)]
    array, segment = segment_of(values_of(40, 60))
    for _ in range(3):
        for taker in takers:
            taken(taker, array, slice(0, 9))
    assert copier.log.count("register") == 1
    segment.grow(1 << 20)  # another mapping
    larger = segment.array("float64", (400, 60))
    larger[40:] = 7
    expected = larger[30:50].copy()
    for taker in takers:
        taken(taker, larger, slice(30, 50))
    assert copier.log.count("register") == 2
    under_way = [taker.take(larger, slice(30, 50)) for taker in takers]
    del array, larger, segment
    gc.collect()
    assert copier.log.count("unregister") == 2
    assert not copier.registered
    for found in arrived(under_way):  # the copies were made before that
        np.testing.assert_array_equal(found, expected)
    check_the_end_of_a_session_unpins_what_a_next_one_pins_again()


def check_the_end_of_a_session_unpins_what_a_next_one_pins_again():
    array, _ = segment_of(values_of(40, 60))
    for _ in range(2):
        way, copier = way_of()
        taker = DeviceTaker(way)
        taken(taker, array, slice(3, 9))
        assert list(copier.registered)
        way.close()
        assert not copier.registered
        rows = taken(taker, array, slice(4, 9))  # by JAX from here on
        assert isinstance(rows, np.ndarray)


@in_a_child
def test_what_the_driver_refuses_goes_another_way(monkeypatch):
    check_what_cannot_be_pinned_goes_in_two_steps_or_by_jax_with_one_warning()
    check_copies_are_made_before_their_memory_goes_and_not_in_a_child()
    check_without_a_copier_jax_copies_and_one_warning_says_so()
    check_rows_that_find_no_room_on_the_device_are_left_to_jax(monkeypatch)


def check_what_cannot_be_pinned_goes_in_two_steps_or_by_jax_with_one_warning():
    array, _ = segment_of(values_of(4000, 60))
    for limit, on_device in ((1 << 16, True), (0, False)):
        way, _ = way_of(refuses=lambda nbytes, limit=limit: nbytes > limit)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for batch in (slice(5, 25), np.arange(0, 60, 3), slice(7, 27)):
                rows = taken(DeviceTaker(way), array, batch)
                assert isinstance(rows, np.ndarray) != on_device
        (warning,) = caught
        assert "CUDA_ERROR_OUT_OF_MEMORY" in str(warning.message)


def check_copies_are_made_before_their_memory_goes_and_not_in_a_child():
    """Though nobody came for them. A child touches nothing of the driver."""
    way, copier = way_of()
    taker = DeviceTaker(way)
    array, segment = segment_of(values_of(40, 60))
    for batch in (slice(0, 9), np.arange(0, 40, 3), slice(2, 30)):
        taker.take(array, batch)
        assert len(copier.open) == 1
    child = os.fork()
    if child == 0:
        del taker, array, segment
        gc.collect()
        os._exit(len(copier.open) != 1 or "unregister" in copier.log)
    assert os.waitpid(child, 0)[1] == 0
    del taker
    gc.collect()
    assert not copier.open


def check_without_a_copier_jax_copies_and_one_warning_says_so():
    def fail():
        raise ImportError("No module named 'cuda'")

    array, _ = segment_of(values_of(40, 60))
    taker = DeviceTaker(ToDevice(fail))
    with pytest.warns(RuntimeWarning, match="JAX's own copies.*'cuda'"):
        assert np.shares_memory(taker.take(array, slice(0, 9)), array)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.shares_memory(taker.take(array, slice(0, 9)), array)
        assert not ToDevice(fail, warns=False).takes(np.dtype("f8"))


def check_rows_that_find_no_room_on_the_device_are_left_to_jax(monkeypatch):
    import jax.numpy as jnp

    def no_room(*args):
        raise RuntimeError("RESOURCE_EXHAUSTED")

    array, _ = segment_of(values_of(40, 60))
    taker = DeviceTaker(ToDevice(LateCopier))
    with monkeypatch.context() as full:
        full.setattr(jnp, "zeros", no_room)
        with pytest.warns(RuntimeWarning, match="own copies: RESOURCE_EXHAUSTED"):
            assert np.shares_memory(taker.take(array, slice(0, 9)), array)
    assert not isinstance(taken(taker, array, slice(0, 9)), np.ndarray)


# -- in calls of functions


def worker_log(context):
    """Return what the rank's copier has done, and the bytes that are pinned."""
    copier = context.to_device._copier
    return list(copier.log), sum(copier.registered.values())


@in_a_child
def test_calls_and_runs_have_the_numbers_of_the_serial_function():
    """With slices, inputs of every kind, updates by rows, and fewer rows than ranks."""
    n = 2
    x, y, b, scale = pt.matrix("x"), pt.ivector("y"), pt.vector("b"), pt.scalar("scale")
    values, labels = values_of(40, 6), np.arange(40, dtype="int32") % 3
    offset = np.arange(6.0)

    def make(grad, function, **options):
        w = pytensor.shared(np.zeros((6, 3)), name="w")
        p = pt.special.softmax((x + b) * scale @ w, axis=1)
        loss = -pt.log(p[pt.arange(y.shape[0]), y]).mean()
        updates = [(w, w - 0.1 * grad(loss, w))]
        return function(outputs=loss, updates=updates, **options), w

    plain, w = make(
        pytensor.grad, pytensor.function, inputs=[x, y, b, scale], mode="FAST_COMPILE"
    )
    with synk.session(devices=[0] * n):
        f, v = make(synk.grad, synk.function, inputs=[x, y], bcast_inputs=[b, scale])
        X, Y, B = synk.data(values), synk.data(labels), synk.data(offset)
        batches = [slice(7, 31), MASK, [*range(20, 40), *range(4)]]
        batches += [slice(39, 15, -1), slice(3, 4)]
        expected = [
            plain(values[rows], labels[rows], offset, 0.5) for rows in batches * 2
        ]
        np.testing.assert_allclose(f.run(batches, X, Y, B, 0.5), expected[:5])
        np.testing.assert_allclose(
            f.run(batches[:2], values, labels, B, 0.5), expected[5:7]
        )
        for rows, slices, loss in zip(
            batches[2:], (1, 2, 1), expected[7:], strict=True
        ):
            found = f(X, labels, offset, 0.5, batch=rows, num_slices=slices)
            np.testing.assert_allclose(found, loss)
        for rank in range(n):
            np.testing.assert_allclose(synk.get_value(rank, v), w.get_value())
        for log, _ in SESSION.run(worker_log):
            assert any(entry.startswith("copy") for entry in log)


@in_a_child
def test_few_values_are_written_in_the_place_of_the_last_ones(monkeypatch):
    """And what a function returns, or stores, is not in that place."""
    monkeypatch.undo()
    fake_nvml.install(monkeypatch, [None])
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    stand_ins.copier(monkeypatch, LateCopier)
    x, c, n = pt.matrix("x"), pt.scalar("c"), pt.lscalar("n")
    last, rows = pytensor.shared(0.0), pytensor.shared(np.zeros((0, 3)))
    values = np.random.default_rng(2).normal(size=(40, 3))
    with synk.session(1):
        f = synk.function(
            [x],
            [(x, "gather"), (c, None), (n, None), ((x * c)[n], None)],
            bcast_inputs=[c, n],
            updates=[(last, c), (rows, x)],
        )
        calls = [(slice(4 * k, 4 * k + 4), k / 4, k % 4) for k in range(8)]
        found = [f(values, c, i, batch=batch) for batch, c, i in calls]
        for (same, scale, number, product), (batch, factor, i) in zip(
            found, calls, strict=True
        ):
            np.testing.assert_array_equal(same, values[batch])
            np.testing.assert_array_equal((scale, number), (factor, i))
            np.testing.assert_allclose(product, (values[batch] * factor)[i])
        log = SESSION.context.to_device._copier.log
        assert log.count(f"write {4 * 3 * 8}") == len(calls) - 1
        assert log.count("write 8") == len(calls) - 1  # a whole number is not
        kept = rows.get_value(), float(last.get_value())
        f(values, 9.0, 0, batch=[7, 3, 1, 0])
        np.testing.assert_array_equal(kept[0], values[28:32])
        assert kept[1] == 7 / 4
        np.testing.assert_array_equal(rows.get_value(), values[[7, 3, 1, 0]])


# -- rows and variables on the device, call after call


def session_of(n: int):
    """Return a session; the tests that have it run on GPUs as well."""
    return synk.session(n)


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
            jax_engine.OF_RANK.look_about = interrupt
            with pytest.raises(KeyboardInterrupt):
                f(data, batch=np.arange(400 * k, 400 * (k + 1)))
            np.testing.assert_array_equal(s.get_value(), before)
            jax_engine.OF_RANK.look_about = None
            programs = SESSION.context.functions[f._usual.plans.last.replicas.number]
            programs.loader.take([data.data], [np.arange(400 * (k + 1), 400 * (k + 2))])
            f(data, batch=np.arange(400 * k, 400 * (k + 1)))
            assert (s.get_value() == k).all()


@in_a_child
def test_code_is_compiled_once_for_a_shape():
    """However shared variables came to their values, and the rows to the device."""
    n = 2
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


COMPILED = []


def worker_compilations(context):
    """Return how often XLA has compiled on this rank, from the first look on."""
    import jax

    def listen(event, seconds, **options):
        COMPILED.extend([event] * event.endswith("backend_compile_duration"))

    if not COMPILED:
        COMPILED.append("listening")
        jax.monitoring.register_event_duration_secs_listener(listen)
    return len(COMPILED)


def worker_lies_on_device(context, number):
    """Tell whether this rank's value of a variable is an array of JAX's."""
    import jax

    variable = context.variables[number]
    value = variable.get_value(borrow=True, return_internal_type=True)
    return isinstance(value, jax.Array)


@in_a_child
def test_rows_of_shared_variables_are_taken_where_they_lie():
    n, mine = 2, 10  # rows of each rank: XLA compiles once for all n
    rows = np.arange(30.0 * n).reshape(mine * n, 3)
    s = pytensor.shared(np.zeros((0, 3)), name="s")
    with session_of(n):
        synk.scatter(s, rows)
        f = synk.function([], (s.sum(axis=0), "sum"), sliceable_shareds=[s], mode="JAX")
        for chosen in (
            *(slice(0, 4), slice(3, mine), slice(1, mine, 3), slice(5, 5)),
            *(np.array([7, 0, 7, 3]), np.arange(mine) % 2 == 0),
        ):
            parts = [part[chosen] for part in np.split(rows, n)]
            expected = np.concatenate(parts).sum(axis=0)
            np.testing.assert_array_equal(f(batch_s=chosen), expected)
            np.testing.assert_array_equal(f(batch_s=chosen, num_slices=2), expected)
        np.testing.assert_array_equal(f(), rows.sum(axis=0))
        number = SESSION.pool.numbers[s]
        assert SESSION.run(worker_lies_on_device, number) == [True] * n
