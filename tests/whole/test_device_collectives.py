"""All-reduces and collectives of values on devices: JAX on the CPU, and fake_nccl.

What stands in for NCCL is in fake_nccl; see tests/whole/gpu for NCCL. A rank imports
JAX for seconds: so a session is there for many checks.
"""

import os
import signal

import fake_nvml
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import stand_ins
from children import in_a_child
from fake_nccl import UNKNOWN, ByExchange, Watched, without_nccl
from reference import assert_same, reduced, values_of

import synk
from synk.engines import jax as engine
from synk.ranks import context as context_module
from synk.ranks.replication import master_replicate_variables
from synk.ranks.session import SESSION

EVERY = ("avg", "sum", "prod", "min", "max")
OPS = {
    "float16": ("avg", "sum"),
    "float32": EVERY,
    "float64": ("avg", "max"),
    "int8": ("avg", "prod"),
    "int64": EVERY,
    "uint32": ("min", "sum"),
    "int16": ("sum",),
    "bool": ("max",),
    "complex64": ("avg",),
}
"""All ops, and all dtypes: XLA compiles for each pair, on each rank."""
MOVED = ("float16", "float32", "int64", "int16", "complex64")


@pytest.fixture(autouse=True)
def gpus(monkeypatch):
    """Pretend to have GPUs, and keep JAX on the CPU, where XLA compiles soon."""
    fake_nvml.install(monkeypatch, [None] * 4)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    stand_ins.transport(monkeypatch, ByExchange)


def worker_take(context, numbers):
    """Bring variables to this rank's device."""
    import jax

    jax.config.update("jax_enable_x64", True)
    for number in numbers:
        engine.get_value(context.variables[number])


def worker_look(context, numbers):
    """Tell how often the transport was used since the last look, and what is there."""
    transport = context.device_buffers._transport
    calls = getattr(transport, "calls", 0)
    if transport is not None:
        transport.calls = 0
    variables = [context.variables[number] for number in numbers]
    return calls, [engine.has_value(var) for var in variables]


def look(variables):
    return SESSION.run(worker_look, [SESSION.pool.numbers[var] for var in variables])


def give(variables, by_rank):
    """Give every rank values of its own, on its device."""
    for rank, values in enumerate(by_rank):
        synk.set_value(rank, variables, values)
    SESSION.run(worker_take, master_replicate_variables(variables))
    [entry.mark_known() for entry in SESSION.ledger.entries(variables)]
    look([])


def assert_values(rank, variables, expected, ulps=2):
    for found, right in zip(synk.get_value(rank, variables), expected, strict=True):
        assert_same(found, right, ulps)


def assert_on_ranks(variables, expected, ulps=2):
    for rank in range(synk.size()):
        assert_values(rank, variables, expected, ulps)


def shared_of(value):
    return pytensor.shared(np.zeros((1,) * np.ndim(value), np.asarray(value).dtype))


def assert_reduced(found, op, values):
    right, dtype = reduced(op, values), values[0].dtype
    if op == "avg" and dtype.kind in "iu":
        assert found.dtype == dtype
        wrong = found.astype("longdouble") - np.rint(right.astype("float64"))
        assert abs(wrong).max(initial=0) <= max(1, 2**-50 * np.iinfo(dtype).max)
    else:
        assert_same(found, right, 4, 1)


@in_a_child
def test_reductions_of_every_op_and_dtype_equal_numpys():
    with synk.session(devices=[0, 0]):
        check_variables_of_every_dtype()
        check_nan_wins_a_comparison_as_in_numpy()
        check_functions_of_every_dtype()


def check_variables_of_every_dtype():
    kinds = [("float32", ()), ("float64", (0,)), *((dtype, (2, 3)) for dtype in OPS)]
    everyone = {kind: shared_of(values_of(*kind)) for kind in kinds}
    for seed, op in enumerate(EVERY):
        some = [kind for kind in kinds if op in OPS[kind[0]]]
        variables = [everyone[kind] for kind in some]
        by_rank = [
            [values_of(*kind, seed, i, rank) for i, kind in enumerate(some)]
            for rank in range(2)
        ]
        give(variables, by_rank)
        kept = synk.reduce(variables, op, in_place=False)
        for rank, own in enumerate(by_rank):
            for found, value in zip(synk.get_value(rank, variables), own, strict=True):
                assert_same(found, value, 0)
        synk.all_reduce(variables, op)
        for calls, on_device in look(variables):
            assert all(on_device)
            known = {dtype for dtype, _ in some} - UNKNOWN
            if op == "avg":
                known = {dtype for dtype in known if dtype.startswith("float")}
            assert calls == 2 * len(known)
        on_ranks = [synk.get_value(rank, variables) for rank in range(2)]
        for i, values in enumerate(zip(*by_rank, strict=True)):
            for found in (kept[i], *(of_rank[i] for of_rank in on_ranks)):
                assert_reduced(found, op, values)


def check_nan_wins_a_comparison_as_in_numpy():
    """NCCL's own minimum and maximum pass over it."""
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 1.5, -2.5, -np.nan])
    other = np.array([1.0, 2.0, 3.0, 1.0, -1.5, np.nan, 2.0])
    dtypes = ("float16", "float32", "float64")
    variables = [pytensor.shared(np.zeros(7, dtype)) for dtype in dtypes]
    for op, ufunc in (("min", np.minimum), ("max", np.maximum)):
        for pair in ((special, other), (other, special)):
            give(variables, [[v.astype(dtype) for dtype in dtypes] for v in pair])
            synk.all_reduce(variables, op)
            assert [calls for calls, _ in look(variables)] == [3, 3]
            right = [ufunc(*pair).astype(dtype) for dtype in dtypes]
            assert_on_ranks(variables, right, 0)


def check_functions_of_every_dtype():
    """In one, with what the transport cannot combine beside what it can."""
    inputs = [
        pt.tensor(dtype=dtype, shape=(None, None))
        for dtype in OPS
        if dtype != "float16"
    ]
    pairs = [(x, op) for x in inputs for op in OPS[x.dtype]]
    # A rank's first row, and something of no dimensions.
    outputs = [
        (synk.ops.all_reduce(value, op), None)
        for x, op in pairs
        for value in ([x[0], x[0, 0]] if x.dtype == "float32" else [x[0]])
    ]
    random = abs(np.random.default_rng(0).normal(size=(7, 3))) * 3
    rows = [random.astype(x.dtype) for x in inputs]
    on_devices = synk.function(inputs, outputs)
    on_host = synk.function(inputs, outputs, mode="FAST_COMPILE")
    look([])
    for count in (3, 1, 3):  # fewer rows than ranks: one has none
        part = [array[:count] for array in rows]
        for found, expected in zip(on_devices(*part), on_host(*part), strict=True):
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(found, expected, rtol=2e-6)
    groups = [
        x
        for x, op in pairs
        # Averages of integers are rounded once, on the host.
        if x.dtype not in UNKNOWN and (op != "avg" or x.dtype.startswith("float"))
    ]
    assert look([]) == [(3 * len(groups), [])] * 2


# -- three ranks


def check_reduce_changes_rank_0_alone_and_its_results_are_copies():
    by_rank = [[np.arange(3.0) + rank, np.float32(rank)] for rank in range(3)]
    variables = [shared_of(value) for value in by_rank[0]]
    give(variables, by_rank)
    results = synk.reduce(variables, "sum")
    assert all(on_device == [True, True] for _, on_device in look(variables))
    by_rank[0] = [np.arange(3.0) * 3 + 3, np.float32(3)]
    for found, right in zip(results, by_rank[0], strict=True):
        assert_same(found, right)
    results[0][...] = 7
    for rank, values in enumerate(by_rank):
        assert_values(rank, variables, values)


def check_an_average_weighs_each_value_by_the_rows_behind_it():
    x = pt.vector("x")
    a, b, c = (pytensor.shared(np.nan, name=name) for name in "abc")
    f = synk.function([x], updates={a: x.mean()}, local=True)
    g = synk.function([x], updates={b: x.mean()}, local=True)
    rows = np.arange(7.0) ** 2
    f(rows)
    g(rows[3:4])  # two ranks have no rows: their NaN is left out
    give([c], [[rank**2.0] for rank in range(3)])
    assert_same(synk.reduce([a, b], in_place=False)[1], rows[3])
    synk.all_reduce([a, b, c])
    assert_on_ranks([a, b, c], [rows.mean(), rows[3], np.array(5 / 3)], 8)
    f(rows)
    synk.set_value(2, a, 3.0)  # no rows behind this one: all count alike
    synk.all_reduce(a)
    expected = np.mean([rows[:3].mean(), rows[3:5].mean(), 3])
    assert_same(synk.get_value(1, a), expected, 8)
    assert look([a])[0][0]


def check_numbers_of_16_bits_are_rounded_once():
    a = pytensor.shared(np.zeros(1, "float16"))
    give([a], [[value] for value in np.float16([[2048], [1], [1]])])  # 2048 + 1 is 2048
    assert_same(synk.reduce(a, "sum", in_place=False), np.float16([2050]), 0)
    give([a], [[np.float16([1])]] * 3)
    synk.all_reduce(a)  # a third of 16 bits, three times, is 0.9995
    assert_same(synk.get_value(2, a), np.float16([1]), 0)
    assert look([a])[0][0] == 1


def check_a_training_step_is_the_serial_one():
    """In which gradients are reduced on the way."""
    random = np.random.default_rng(0)
    x, y = pt.matrix("x"), pt.vector("y")
    start = [random.normal(size=(4, 5)), random.normal(size=5)]
    rows, targets = random.normal(size=(11, 4)), random.normal(size=11)

    def make(grad, function, **options):
        w, v = (pytensor.shared(value.copy()) for value in start)
        loss = ((pt.tanh(x @ w) @ v - y) ** 2).mean()
        dw, dv = grad(loss, [w, v])
        updates = [(w, w - 0.1 * dw), (v, v - 0.1 * dv)]
        return function([x, y], loss, updates=updates, **options), [w, v]

    plain, expected = make(pytensor.grad, pytensor.function, mode="FAST_COMPILE")
    step, params = make(synk.grad, synk.function)
    for count, num_slices in ((11, 1), (11, 2), (1, 1), (7, 1)):
        loss = step(rows[:count], targets[:count], num_slices=num_slices)
        np.testing.assert_allclose(loss, plain(rows[:count], targets[:count]))
    assert_on_ranks(params, [param.get_value() for param in expected], 1000)


def check_differing_shapes_are_named_and_nothing_is_changed():
    a, b = pytensor.shared(np.zeros((1, 2)), name="a"), pytensor.shared(0.0, name="b")
    parts = [[np.full((rank + 1, 2), 1.0 * rank), 1.0] for rank in range(3)]
    give([a, b], parts)
    for reduction, op in (synk.all_reduce, "avg"), (synk.reduce, "max"):
        with pytest.raises(synk.ShapeMismatch) as caught:
            reduction([b, a], op)
        text = str(caught.value)
        assert f"reduce by {op!r} a" in text
        for rank in range(3):
            assert f"rank {rank} ({rank + 1}, 2)" in text
    for rank, (part, _) in enumerate(parts):
        assert_same(synk.get_value(rank, a), part)
        assert_same(synk.get_value(rank, b), np.array(1.0))
    synk.set_value(1, a, np.zeros((1, 3)))
    with pytest.raises(synk.ShapeMismatch, match=r"0 \(1, 2\), rank 1 \(1, 3\)"):
        synk.all_gather(a)
    with pytest.raises(ValueError, match=r"b has no (dimensions|rows)"):
        synk.all_gather(b)
    synk.broadcast(a)
    synk.all_reduce([a, b], "sum")
    assert_on_ranks([a, b], [np.zeros((1, 2)), np.array(3.0)])


def check_broadcast_gives_every_rank_the_masters_values():
    values = [values_of(dtype, (2, 3)) for dtype in MOVED]
    values += [np.zeros(0, "f"), np.float32(3), np.float32([np.nan, -0.0])]
    stream = pytensor.shared(np.random.default_rng(0))
    on_host = pytensor.shared(np.arange(3.0))
    variables = [shared_of(value) for value in values]
    others = [np.zeros((1,) * value.ndim, value.dtype) for value in values]
    give(variables, [values, others, others])
    on_host.set_value(np.arange(4.0))
    synk.broadcast([stream, on_host, *variables])
    assert_on_ranks([on_host, *variables], [np.arange(4.0), *values], 0)
    for calls, on_device in look([*variables, on_host]):
        assert calls == len(set(MOVED) - UNKNOWN)
        assert on_device == [True] * len(variables) + [False]
    draws = [synk.get_value(rank, stream).random() for rank in range(3)]
    assert len(set(draws)) == 3


def check_all_gather_is_exact_for_equal_and_for_differing_lengths(lengths):
    kinds = [*((dtype, ()) for dtype in MOVED), ("float32", (2,)), ("float32", (0,))]
    by_rank = [
        [
            values_of(dtype, (length, *trail), i, rank)
            for i, (dtype, trail) in enumerate(kinds)
        ]
        for rank, length in enumerate(lengths)
    ]
    variables = [shared_of(value) for value in by_rank[0]]
    give(variables, by_rank)
    right = [np.concatenate(values) for values in zip(*by_rank, strict=True)]
    for found, whole in zip(synk.all_gather(variables), right, strict=True):
        assert_same(found, whole, 0)
    assert_on_ranks(variables, right, 0)
    for calls, on_device in look(variables):
        assert calls == len(set(MOVED) - UNKNOWN)
        assert all(on_device)


def check_values_on_the_host_stay_there():
    a = pytensor.shared(np.ones(3))
    look([])
    synk.all_reduce(a, "sum")
    synk.all_gather(a)
    synk.broadcast(a)
    assert_same(synk.get_value(1, a), np.full(9, 3.0))
    assert look([a]) == [(0, [False])] * 3


@in_a_child
def test_collectives_of_three_ranks_on_devices():
    with synk.session(devices=[0] * 3):
        check_reduce_changes_rank_0_alone_and_its_results_are_copies()
        check_an_average_weighs_each_value_by_the_rows_behind_it()
        check_numbers_of_16_bits_are_rounded_once()
        check_a_training_step_is_the_serial_one()
        check_differing_shapes_are_named_and_nothing_is_changed()
        check_broadcast_gives_every_rank_the_masters_values()
        for lengths in (2, 2, 2), (3, 0, 1):
            check_all_gather_is_exact_for_equal_and_for_differing_lengths(lengths)
        check_values_on_the_host_stay_there()


# -- what goes wrong on the way


def on_all(variables):
    """Return every collective that goes from device to device."""
    return {
        "all_reduce": lambda: synk.all_reduce(variables, "sum"),
        "reduce": lambda: synk.reduce(variables, "max"),
        "broadcast": lambda: synk.broadcast(variables),
        "all_gather": lambda: synk.all_gather(variables),
    }


def fail_on_rank_1(comm):
    if comm.rank == 1:
        raise ZeroDivisionError("on the way")


def die_on_rank_1(comm):
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def worker_arm(context, before):
    """Have something done before the next collectives, or nothing."""
    Watched.before = staticmethod(before or (lambda comm: None))


def worker_made(context):
    """Return how many transports this rank has made."""
    return Watched.made


def summing():
    """Return a function that reduces what it computes."""
    x = pt.vector("x")
    checked = pt.specify_shape(x, (None,))
    return synk.function([x], (synk.ops.all_reduce(checked.sum(), "sum"), None))


@in_a_child
def test_an_error_on_one_rank_ends_a_collective_on_all():
    a, rows = pytensor.shared(np.zeros(3)), np.ones(6)
    with synk.session(devices=[0] * 3):
        check_nothing_is_compiled_while_a_collective_is_under_way()
        SESSION.run(worker_arm, None)
        f = summing()
        assert f(rows) == 6
        give([a], [[np.ones(3) * rank] for rank in range(3)])
        for made, collective in enumerate(on_all([a]).values(), 1):
            SESSION.run(worker_arm, fail_on_rank_1)
            with pytest.raises(ZeroDivisionError, match="on the way") as caught:
                collective()
            assert "rank 1 of 3" in "".join(caught.value.__notes__)
            for rank in range(3):
                assert_same(synk.get_value(rank, a), np.ones(3) * rank)
            SESSION.run(worker_arm, None)
            assert_same(synk.reduce(a, "sum", in_place=False), np.full(3, 3.0))
            # All have connected anew.
            assert SESSION.run(worker_made) == [made + 1] * 3
        assert f(rows) == 6
        SESSION.run(worker_arm, die_on_rank_1)
        for _ in range(2):  # later calls, too
            with pytest.raises(synk.WorkerDied) as caught:
                synk.all_reduce(a)
            assert caught.value.rank == 1
            assert caught.value.signal == signal.SIGKILL
    assert_same(a.get_value(), np.zeros(3))


def check_nothing_is_compiled_while_a_collective_is_under_way():
    """A GPU that waits for a rank that has failed loads no program."""
    a = pytensor.shared(np.zeros(3))
    give([a], [[np.ones(3)]] * 3)
    SESSION.run(worker_note_compilations)
    for name, collective in on_all([a]).items():
        SESSION.run(worker_noted)
        collective()
        for noted in SESSION.run(worker_noted):
            begun = noted.index("collective")
            assert "compiled" in noted[:begun], name
            assert "compiled" not in noted[begun:], name


def worker_note_compilations(context):
    """Have it noted when collectives begin, and when JAX has compiled something."""
    import jax

    def note(event, *args, **kwargs):
        if event.endswith("backend_compile_duration"):
            Watched.noted.append("compiled")

    Watched.noted = []
    Watched.before = staticmethod(lambda comm: Watched.noted.append("collective"))
    jax.monitoring.register_event_duration_secs_listener(note)


def worker_noted(context):
    """Return what was noted since this was asked last."""
    noted, Watched.noted = Watched.noted, []
    return noted


class Pending:
    """An array that is never computed, as where a rank of NCCL's is gone."""

    def is_ready(self):
        return False


@in_a_child
def test_what_the_user_gets_is_not_waited_for_in_vain():
    s = pytensor.shared(np.ones(3))
    engine.OF_RANK.look_about = lambda: 1 / 0
    try:
        with pytest.raises(ZeroDivisionError):
            engine.as_output(Pending())
        with pytest.raises(ZeroDivisionError):
            engine.set_value(s, Pending())
    finally:
        engine.OF_RANK.look_about = None
    assert_same(s.get_value(), np.ones(3))


@in_a_child
def test_without_nccl_the_host_reduces_and_a_warning_says_so():
    context_module.NcclTransport = without_nccl  # in this child
    a, b = pytensor.shared(np.zeros(3)), pytensor.shared(np.zeros(1, "int8"))
    with synk.session(devices=[0, 0]):
        f = summing()
        with pytest.warns(RuntimeWarning, match="through the host.*'nccl'"):
            assert f(np.ones(4)) == 4
        assert f(np.ones(6)) == 6
        give([a, b], [[np.ones(3), np.int8([4])], [np.ones(3) * 2, np.int8([5])]])
        synk.all_reduce([a, b], "sum")
        assert_on_ranks([a, b], [np.full(3, 3.0), np.int8([9])])
        synk.set_value(1, a, np.zeros(2))
        assert_same(synk.all_gather(a), np.array([3.0, 3, 3, 0, 0]))
        synk.set_value(1, a, np.zeros(2))
        synk.broadcast(a)
        assert_same(synk.get_value(1, a), np.array([3.0, 3, 3, 0, 0]))
        assert look([a, b])[1] == (0, [True, True])


# -- functions, of two ranks


@in_a_child
def test_functions_without_a_mode_run_where_the_gpu_is():
    x, s = pt.vector("x"), pytensor.shared(np.zeros(()))
    with synk.session(devices=[0, 0]):
        assert pytensor.config.mode == "JAX"
        f = synk.function([x], x.sum(), updates=[(s, s + 1)])
        assert f(np.arange(5.0)) == 10
        value = s.get_value(borrow=True, return_internal_type=True)
        assert not isinstance(value, np.ndarray)
        check_shapes_may_change_and_must_agree()
        check_what_a_stage_reduces_is_not_written_to()
    assert pytensor.config.mode == "Mode"


def check_shapes_may_change_and_must_agree():
    x = pt.matrix("x")
    f = synk.function([x], (synk.ops.all_reduce(x.sum(axis=0), "sum"), None))
    for width in (3, 5, 3):
        assert_same(f(np.ones((4, width))), np.full(width, 4.0))
    g = synk.function([x], (synk.ops.all_reduce(x.sum(axis=1), "sum"), None))
    with pytest.raises(synk.ShapeMismatch):
        g(np.ones((5, 2)))
    assert_same(g(np.ones((4, 2))), np.full(2, 4.0))


def check_what_a_stage_reduces_is_not_written_to():
    """The transport may use the memory of what it is given: it gets copies."""
    x, s = pt.vector("x"), pytensor.shared(np.zeros(2))
    own, total = x[:2] * 1.0, synk.ops.all_reduce(s, "sum")
    outputs = [(own, "gather"), (total, None)]
    f = synk.function([x], outputs, updates={s: own}, local=True)
    f(np.arange(4.0))
    for _ in range(2):
        mine, of_all = f(np.arange(4.0))
        assert_same(mine, np.arange(4.0))
        assert_same(of_all, np.array([2.0, 4.0]))
        assert_same(synk.get_value(1, s), np.array([2.0, 3.0]))
