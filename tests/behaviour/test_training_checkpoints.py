"""Checkpoints: all that is saved comes back on every rank, or an error and nothing."""

from __future__ import annotations

import os
import re
import resource
import signal
import stat
import subprocess
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.sparse
from checkpointing import a_few, check_unchanged, make, overwrite, shared
from on_ranks import assert_on_ranks, by_rank, one_and_three_ranks, three_ranks
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from reference import DTYPES, PY, SHAPES, assert_same, values_of

import synk

pytestmark = [
    pytest.mark.filterwarnings("ignore:Setting default_update"),
    pytest.mark.filterwarnings("ignore:RandomVariable Ops will stop hiding"),
    pytest.mark.filterwarnings("ignore::FutureWarning:pytensor"),
]

# -- values ----------------------------------------------------------------------------


@one_and_three_ranks
def test_every_dtype_and_shape_comes_back_exactly_on_every_rank(checkpoint, ranks):
    dtypes = [d for d in DTYPES if checkpoint.suffix == ".npz" or "complex" not in d]
    values = {
        f"{dtype} {shape}": np.asarray(values_of(dtype, shape, 1))
        for dtype in dtypes
        for shape in SHAPES
    }
    variables = make(values)
    synk.save(checkpoint, variables)
    synk.broadcast(variables, [np.zeros_like(value) for value in values.values()])
    synk.load(checkpoint, variables)
    for loaded in by_rank(variables):
        for got, right in zip(loaded, values.values(), strict=True):
            assert_same(got, right, 0)
            assert got.tobytes() == right.tobytes()


def test_no_session_is_needed(checkpoint):
    values = a_few()
    variables = make(values)
    synk.save(checkpoint, variables)
    overwrite(variables)
    synk.load(checkpoint, variables)
    check_unchanged(variables, values.values())
    fresh = make({name: np.zeros_like(value) for name, value in values.items()})
    with synk.session(2):
        synk.load(checkpoint, fresh)  # variables that the ranks have not seen before
        assert_on_ranks(fresh[0], values["w"], 0)
    synk.save(checkpoint, fresh[0])
    assert_same(fresh[0].get_value(), values["w"], 0)


def test_special_values_and_layouts_keep_their_bits(checkpoint):
    nan = np.array([0x7FF8000000000123], "uint64").view("float64")
    floats = shared(np.array([*nan, -0.0, np.inf, 5e-324]), "floats")
    fortran = shared(np.asfortranarray(values_of("float64", (4, 3))), "fortran")
    strided = shared(np.zeros(1), "strided")
    strided.set_value(np.arange(20.0)[::-3], borrow=True)
    variables = [floats, fortran, strided]
    before = [var.get_value() for var in variables]
    synk.save(checkpoint, variables)
    whole = checkpoint.read_bytes()
    overwrite(variables)
    fortran.set_value(np.ones((1, 1)))  # shapes may change where the type leaves them
    synk.load(checkpoint, variables)
    for var, right in zip(variables, before, strict=True):
        assert var.get_value().tobytes() == right.tobytes()
    synk.save(checkpoint, variables)
    assert checkpoint.read_bytes() == whole  # equal values make equal files


@three_ranks
def test_rank_0s_value_is_saved_and_counts_alike_on_all_ranks(checkpoint, ranks):
    x, w = pt.vector("x"), shared(0.0, "w")
    mean = synk.function([x], updates={w: x.mean()}, mode=PY, local=True)
    mean(np.arange(5.0))  # of 2, 2 and 1 rows
    synk.save(checkpoint, w)
    synk.load(checkpoint, w)
    assert_on_ranks(w, np.array(0.5))
    mean(np.arange(5.0))
    synk.load(checkpoint, w)
    synk.set_value(1, w, 3.5)
    synk.all_reduce(w)
    assert_on_ranks(w, np.array(1.5))


def test_the_extension_says_the_format_whatever_its_case(checkpoint):
    w = shared(np.ones(3), "w")
    loud = checkpoint.with_suffix(checkpoint.suffix.upper())
    synk.save(str(loud), w)
    w.set_value(np.zeros(3))
    synk.load(loud, w)
    assert_same(w.get_value(), np.ones(3))
    for name in ("w", "w.npy", "w.pkl", ".npz"):
        for call in (synk.save, synk.load):
            with pytest.raises(ValueError, match=r"must end in \.npz or \.safetensors"):
                call(checkpoint.with_name(name), w)


# -- what does not fit -----------------------------------------------------------------

MISFITS = [
    (np.zeros(2), "other", {}, "no value for other; it has last, w"),
    (np.zeros(2, "float32"), "w", {}, "float64 .*float32"),
    (np.zeros(2, complex), "w", {}, "float64 .*complex128"),
    (np.zeros(2, "int64"), "w", {}, "float64 .*int64"),
    (np.zeros((2, 1)), "w", {}, r"shape \(2,\).*Matrix"),
    (np.zeros(3), "w", {"shape": (3,)}, r"shape \(2,\)"),
]


def test_what_does_not_fit_is_refused_and_nothing_is_loaded(checkpoint, two_ranks):
    synk.save(checkpoint, [shared(np.ones(2), "w"), shared(np.ones(1), "last")])
    last = shared(np.zeros(1), "last")
    for value, name, options, match in MISFITS:
        misfit = shared(value, name, **options)
        asked = {"last": last, name: misfit}
        synk.broadcast([last, misfit])
        for wanted in (asked, dict(reversed(asked.items()))):
            with pytest.raises(synk.CheckpointError, match=match):
                synk.load(checkpoint, wanted)
        assert_on_ranks(last, np.zeros(1))
        assert_on_ranks(misfit, value)


def test_a_file_may_hold_more_than_is_asked_for(checkpoint):
    a, b = shared(np.ones(2), "a"), shared(np.ones(3), "b")
    synk.save(checkpoint, [a, b])
    overwrite([a, b])
    synk.load(checkpoint, b)
    assert_same(a.get_value(), np.full(2, 4.0))
    assert_same(b.get_value(), np.ones(3))


def test_what_cannot_be_stored_is_refused(checkpoint):
    sparse = shared(scipy.sparse.csr_matrix(np.eye(2)), "sparse")
    a, b = shared(np.ones(2), "a"), shared(np.zeros(2), "a:bit_generators")
    rng = shared(np.random.default_rng(1), "a")
    for call in (synk.save, synk.load):
        for bad, error, match in [
            (sparse, TypeError, "sparse is a .*only dense tensors and random"),
            ([shared(0.0, "a"), pt.vector("v")], TypeError, "shared variables, got v"),
            ([np.zeros(2)], TypeError, "shared variables, got"),
            ({"a": np.zeros(2)}, TypeError, "shared variables, got"),
            ({3: shared(0.0)}, TypeError, "must be of type str, got 3"),
            ({"": shared(0.0)}, ValueError, "cannot have the name ''"),
            ({"a\0b": shared(0.0)}, ValueError, "cannot have the name"),
            ({"__metadata__": shared(0.0)}, ValueError, "cannot have the name"),
            ([a, a], ValueError, "twice"),
            ({"x": a, "y": a}, ValueError, "twice"),
            ([a, shared(0.0, "a")], ValueError, "several variables are named a"),
            ([rng, b], ValueError, "several variables are named a:bit"),
            ({a, b}, TypeError, "a set has no order"),
            (synk.updates.sgd([pt.ones(2)], [a], 0.1), TypeError, r"list\(updates\)"),
        ]:
            with pytest.raises(error, match=match):
                call(checkpoint, bad)
    assert not os.listdir(checkpoint.parent)
    synk.save(checkpoint, [])
    synk.load(checkpoint, [])


def test_complex_numbers_are_stored_in_npz_alone(checkpoint):
    z = shared(np.ones(2, "complex64"), "z")
    if checkpoint.suffix == ".npz":
        synk.save(checkpoint, z)
        assert checkpoint.exists()
    else:
        with pytest.raises(TypeError, match=r"z is complex64.*use \.npz"):
            synk.save(checkpoint, z)
        assert not os.listdir(checkpoint.parent)


def test_without_safetensors_the_error_says_what_to_install(tmp_path, monkeypatch):
    for name in ("safetensors", "safetensors.numpy"):
        monkeypatch.setitem(sys.modules, name, None)
    w, checkpoint = shared(np.ones(2), "w"), tmp_path / "w.safetensors"
    with pytest.raises(ImportError, match="pip install safetensors"):
        synk.save(checkpoint, w)
    assert not os.listdir(tmp_path)
    checkpoint.touch()
    with pytest.raises(ImportError, match="pip install safetensors"):
        synk.load(checkpoint, w)


class Save(Op):
    """Saves and loads on ranks but the master; returns how often that is refused."""

    __props__ = ("path",)

    def __init__(self, path):
        self.path = path

    def make_node(self):
        return Apply(self, [], [pt.lscalar()])

    def perform(self, node, inputs, outputs):
        refused = 0
        for call in (synk.save, synk.load):
            try:
                if synk.rank():
                    call(self.path, [])
            except synk.StateError as error:
                refused += "only the master" in str(error)
        outputs[0][0] = np.asarray(refused)


def test_ranks_are_refused(checkpoint, two_ranks):
    f = synk.function([], (Save(str(checkpoint))(), "gather"), mode=PY)
    assert f().tolist() == [0, 2]
    assert not checkpoint.exists()


# -- names -----------------------------------------------------------------------------

NAMES = (
    *("file", "allow_pickle", "a/b", "../up", "/root", "x.npy", "x", "Größe", " "),
)


def test_any_name_will_do(checkpoint):
    values = {name: np.full(i + 1, float(i)) for i, name in enumerate(NAMES)}
    variables = make(values)
    synk.save(checkpoint, variables)
    overwrite(variables)
    synk.load(checkpoint, variables)
    check_unchanged(variables, values.values())


def test_a_dict_names_variables_for_the_file(checkpoint):
    a, b = shared(np.ones(2), "same"), shared(np.zeros(2), "same")
    synk.save(checkpoint, {"a": a, "b": b})
    c = shared(np.zeros(2))
    synk.load(checkpoint, {"a": c})
    assert_same(c.get_value(), np.ones(2))


def test_variables_without_names_go_by_their_place_in_lists_of_one_length(checkpoint):
    a, b = shared(np.ones(2)), shared(np.zeros(2))
    synk.save(checkpoint, [a, b])
    overwrite([a, b])
    synk.load(checkpoint, [a, b])
    assert_same(a.get_value(), np.ones(2))
    assert_same(b.get_value(), np.zeros(2))
    for others in ([b], [a, b, shared(0.0)]):
        with pytest.raises(synk.CheckpointError, match="has no value for unnamed 0 of"):
            synk.load(checkpoint, others)


# -- training that goes on -------------------------------------------------------------

STEPS, STOP = 6, 3
KINDS = ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"]


def build(seed: int):
    """Return a step with noise and Adam, and all variables that it updates.

    The noise is of generators of all kinds.
    """
    x, y = pt.matrix("x"), pt.vector("y")
    start = np.random.default_rng(seed)
    w = pytensor.shared(start.normal(size=(3, 2)), "w")
    b = pytensor.shared(start.normal(size=2).astype("float32"), "b")
    rngs, noise = [], 0
    for kind in KINDS:
        bits = getattr(np.random, kind)(seed)
        rngs.append(pytensor.shared(np.random.Generator(bits), f"rng of {kind}"))
        drawn = pt.random.normal(0, 0.5, size=x.shape, rng=rngs[-1])
        rngs[-1].default_update = drawn.owner.outputs[0]
        noise = noise + drawn
    loss = ((pt.tanh((x + noise) @ w + b).sum(axis=1) - y) ** 2).mean()
    updates = synk.updates.adam(loss, [w, b], learning_rate=0.1)
    step = synk.function([x, y], loss, updates=updates, mode=PY)
    assert set(step.updated) == {*updates, *rngs}
    return step, [w, b], step.updated


def train(step, start: int, stop: int) -> list[np.ndarray]:
    random = np.random.default_rng(5)
    X, Y = random.normal(size=(STEPS, 7, 3)), random.normal(size=(STEPS, 7))
    return [step(X[i], Y[i], num_slices=1 + i % 2) for i in range(start, stop)]


def states(variables) -> list:
    """Return the values on every rank, generators by their states."""
    return [
        value.bit_generator.state if isinstance(value, np.random.Generator) else value
        for values in by_rank(variables)
        for value in values
    ]


@pytest.mark.parametrize("n", [1, 3])
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(tmp_path, n):
    checkpoint = tmp_path / "training.npz"
    with synk.session(n):
        step, _, variables = build(1)
        train(step, 0, STOP)
        synk.save(checkpoint, variables)
        right = train(step, STOP, STEPS), states(variables)
    with synk.session(n):
        step, params, variables = build(2)
        train(step, 0, 1)
        # Without the rule's state, or the streams, the run goes on, and differs.
        for some in (params, variables[:-1], variables):
            synk.load(checkpoint, variables)
            train(step, 0, 1)
            synk.load(checkpoint, some)
            found = train(step, STOP, STEPS)
            assert (found == right[0]) == (some is variables)
        np.testing.assert_equal(states(variables), right[1])


def test_on_another_number_of_ranks_streams_derive_from_that_of_rank_0(checkpoint):
    rng = pytensor.shared(np.random.default_rng(3), "rng")

    def drawn():
        return [generator.random(4).tolist() for generator in by_rank(rng)]

    synk.save(checkpoint, rng)  # by one process
    with synk.session(3):
        synk.load(checkpoint, rng)
        three = drawn()
        assert len({*map(tuple, three)}) == 3
        assert three[0] == np.random.default_rng(3).random(4).tolist()
        synk.save(checkpoint, rng)
        synk.broadcast(rng, np.random.default_rng(4))
        synk.load(checkpoint, rng)
        assert drawn() == three
    with synk.session(2):
        synk.broadcast(rng, np.random.default_rng(4))
        synk.load(checkpoint, rng)
        assert drawn() == three[:2]  # the same derivation as at the start
    synk.load(checkpoint, rng)
    assert rng.get_value().random(4).tolist() == three[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_generator_goes_on_where_it_was(checkpoint, kind):
    generator = np.random.Generator(getattr(np.random, kind)(3))
    generator.integers(0, 9, 3, dtype=np.uint32)  # half of a 64-bit draw is left
    rng = pytensor.shared(generator, "rng")
    synk.save(checkpoint, rng)
    rng.set_value(np.random.default_rng(1))
    synk.load(checkpoint, rng)
    loaded = rng.get_value()
    for draw in (
        lambda g: g.integers(0, 9, 3, dtype=np.uint32),
        lambda g: g.normal(size=100),
    ):
        np.testing.assert_array_equal(draw(loaded), draw(generator))


def test_a_generator_of_the_users_own_is_refused(checkpoint):
    class Mine(np.random.PCG64):
        pass

    rng = pytensor.shared(np.random.Generator(Mine(3)), "rng")
    with pytest.raises(TypeError, match=r"rng draws from Mine: only .*PCG64"):
        synk.save(checkpoint, rng)
    assert not checkpoint.exists()


NO_STATES = [
    *(b"", b"[]", b"{}", b"[3]", b'[{"bit_generator": "Mine"}]'),
    b'[{"bit_generator": "PCG64"}]',
    b'[{"bit_generator": "MT19937", "state": {"key": [], "pos": 0}}]',
    b'[{"bit_generator": "PCG64", "state": {"state": "x", "inc": 1}}]',
    b'[{"bit_generator": "PCG64", "state": {"state": -1, "inc": 1},'
    b' "has_uint32": 0, "uinteger": 0}]',
]


def test_a_state_that_is_none_is_an_error(tmp_path):
    checkpoint = tmp_path / "rng.npz"
    rng = pytensor.shared(np.random.default_rng(3), "rng")
    before = rng.get_value().bit_generator.state
    for text in NO_STATES:
        np.savez(checkpoint, **{"rng:bit_generators": np.frombuffer(text, np.uint8)})
        with pytest.raises(synk.CheckpointError, match="rng:bit_generators, uint8"):
            synk.load(checkpoint, rng)
        assert rng.get_value().bit_generator.state == before


@pytest.mark.parametrize(
    ("kind", "field"), [("MT19937", "pos"), ("Philox", "buffer_pos")]
)
def test_a_generator_goes_on_with_a_number_that_it_has(tmp_path, kind, field):
    checkpoint = tmp_path / "rng.npz"
    rng = shared(np.random.Generator(getattr(np.random, kind)(1)), "rng")
    rng.get_value(borrow=True).random(3)
    synk.save(checkpoint, rng)
    arrays = dict(np.load(checkpoint))
    (name,) = arrays
    text = arrays[name].tobytes().decode()
    place = re.search(rf'"{field}": \d+', text)[0]
    before = rng.get_value().bit_generator.state
    for wrong in (300_000_000, 625, -1, "null", 2.5):
        changed = text.replace(place, f'"{field}": {wrong}').encode()
        np.savez(checkpoint, **{name: np.frombuffer(changed, np.uint8)})
        with pytest.raises(synk.CheckpointError, match=field):
            synk.load(checkpoint, rng)
    np.testing.assert_equal(rng.get_value().bit_generator.state, before)
    np.savez(checkpoint, **arrays)
    synk.load(checkpoint, rng)


def test_a_generator_and_a_tensor_are_not_taken_for_each_other(checkpoint):
    rng = pytensor.shared(np.random.default_rng(3), "a")
    tensor = pytensor.shared(np.zeros(3, "uint8"), "a")
    synk.save(checkpoint, rng)
    with pytest.raises(synk.CheckpointError, match="no value for a; it has a:bit"):
        synk.load(checkpoint, tensor)
    synk.save(checkpoint, tensor)
    with pytest.raises(synk.CheckpointError, match=r"no value for a:bit.*; it has a"):
        synk.load(checkpoint, rng)


# -- files of other programs -----------------------------------------------------------


def test_other_programs_read_the_files(checkpoint):
    values = a_few()
    synk.save(checkpoint, make(values))
    if checkpoint.suffix == ".npz":
        found = dict(np.load(checkpoint, allow_pickle=False))
    else:
        from safetensors.numpy import load_file

        found = load_file(checkpoint)
    assert sorted(found) == sorted(values)
    for name, right in values.items():
        assert_same(found[name], right, 0)


def write_plainly(checkpoint, values, compressed):
    """Write a file without synk."""
    if checkpoint.suffix == ".npz":
        (np.savez_compressed if compressed else np.savez)(checkpoint, **values)
    else:
        from safetensors.numpy import save_file

        save_file(values, checkpoint)


@pytest.mark.parametrize("compressed", [False, True])
def test_files_of_other_programs_are_read_and_their_truncation_is_noticed(
    checkpoint, compressed
):
    if compressed and checkpoint.suffix != ".npz":
        return
    values = {name: value for name, value in a_few().items() if name != "none"}
    write_plainly(checkpoint, values, compressed)
    variables = make(values)
    others = overwrite(variables)
    whole = checkpoint.read_bytes()
    for cut in range(0, len(whole), 7):
        checkpoint.write_bytes(whole[:cut])
        with pytest.raises(synk.CheckpointError):
            synk.load(checkpoint, variables)
    check_unchanged(variables, others)
    checkpoint.write_bytes(whole)
    synk.load(checkpoint, variables)
    check_unchanged(variables, values.values())


class Evil:
    """Leaves a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_nothing_is_unpickled(tmp_path):
    checkpoint, trace = tmp_path / "evil.npz", tmp_path / "trace"
    np.savez(checkpoint, w=np.array([Evil(trace)], object))
    w = shared(np.zeros(1), "w")
    with pytest.raises(synk.CheckpointError, match="allow_pickle=False"):
        synk.load(checkpoint, w)
    assert not trace.exists()
    np.load(checkpoint, allow_pickle=True)["w"]
    assert trace.exists()  # it would have run


# -- damage ----------------------------------------------------------------------------


def test_a_file_cut_at_any_byte_is_an_error_and_leaves_the_old_values(checkpoint):
    variables = make(a_few(), rng=3)
    synk.save(checkpoint, variables)
    whole = checkpoint.read_bytes()
    assert 200 < len(whole) < 3000
    others = overwrite(variables)
    for cut in {*range(0, len(whole), 3), *range(len(whole) - 40, len(whole))}:
        checkpoint.write_bytes(whole[:cut])
        with pytest.raises(synk.CheckpointError, match=r"damaged|no value"):
            synk.load(checkpoint, variables)
    check_unchanged(variables, others)


@one_and_three_ranks
def test_a_file_cut_short_leaves_the_old_values_on_all_ranks(checkpoint, ranks):
    variables = make(a_few())
    synk.save(checkpoint, variables)
    whole = checkpoint.read_bytes()
    others = overwrite(variables)
    for cut in (0, 1, len(whole) // 3, len(whole) - 1):
        checkpoint.write_bytes(whole[:cut])
        with pytest.raises(synk.CheckpointError, match="damaged"):
            synk.load(checkpoint, variables)
    for var, other in zip(variables, others, strict=True):
        assert_on_ranks(var, other, 0)


def test_a_changed_byte_is_an_error_or_of_no_consequence(checkpoint):
    values = {"w": values_of("float32", (3, 2), 1), "n": np.int64(-5)[...]}
    variables = make(values, rng=3)
    state = variables[-1].get_value().bit_generator.state
    synk.save(checkpoint, variables)
    whole = checkpoint.read_bytes()
    noticed = 0
    for place in range(len(whole)):
        others = overwrite(variables)
        changed = bytearray(whole)
        changed[place] ^= (0x01, 0x20, 0x80, 0xFF)[place % 4]
        checkpoint.write_bytes(changed)
        try:
            synk.load(checkpoint, variables)
        except synk.CheckpointError:
            noticed += 1
            check_unchanged(variables, others)
        else:  # a date, say, or a checksum's own field that nobody reads
            for var, right in zip(variables, values.values(), strict=False):
                assert_same(var.get_value(), right, 0, err_msg=f"byte {place}")
            loaded = variables[-1].get_value().bit_generator.state
            assert loaded == state, f"byte {place}"
    assert noticed > len(whole) / 2


def test_a_file_that_is_none_of_its_format_is_an_error(checkpoint):
    w = shared(np.zeros(3), "w")
    for content in (b"", b"\0" * 100, b"PK", b"hello" * 100, b"\xff" * 40):
        checkpoint.write_bytes(content)
        with pytest.raises(synk.CheckpointError, match=f"{checkpoint.name} is damaged"):
            synk.load(checkpoint, w)
    assert issubclass(synk.CheckpointError, ValueError)


def test_a_file_that_is_not_there_is_an_os_error(checkpoint):
    w = shared(np.zeros(3), "w")
    with pytest.raises(FileNotFoundError):
        synk.load(checkpoint, w)
    checkpoint.mkdir()
    with pytest.raises(IsADirectoryError):
        synk.load(checkpoint, w)
    with pytest.raises(OSError):
        synk.save(checkpoint, w)
    assert os.listdir(checkpoint.parent) == [checkpoint.name]


def test_a_damaged_size_never_asks_for_memory(tmp_path, monkeypatch):
    checkpoint = tmp_path / "w.npz"
    w = shared(np.zeros(8), "w")
    synk.save(checkpoint, w)
    whole = checkpoint.read_bytes()
    size, huge = b"(8,), }        ", b"(888888888,), }"
    assert whole.count(size) == 1
    checkpoint.write_bytes(whole.replace(size, huge))
    read = []
    monkeypatch.setattr(np.lib.format, "read_array", lambda *args, **_: read.append(1))
    with pytest.raises(synk.CheckpointError, match="Bad CRC"):
        synk.load(checkpoint, w)
    assert not read  # the checksum was compared before


def test_a_changed_shape_is_noticed(tmp_path):
    checkpoint = tmp_path / "w.safetensors"
    w = shared(values_of("float32", (3, 2), 1), "w")
    synk.save(checkpoint, w)
    others = overwrite([w])
    whole = checkpoint.read_bytes()
    assert whole.count(b"[3,2]") == 1
    for shape in (b"[2,3]", b"[6,1]", b"[1,6]"):
        checkpoint.write_bytes(whole.replace(b"[3,2]", shape))
        with pytest.raises(synk.CheckpointError, match="bad checksum of w"):
            synk.load(checkpoint, w)
    check_unchanged([w], others)


def test_a_small_file_does_not_become_huge(tmp_path):
    checkpoint = tmp_path / "w.npz"
    zeros = np.zeros(10_000_000)
    np.savez_compressed(checkpoint, w=zeros)
    assert checkpoint.stat().st_size < zeros.nbytes / 500
    w = shared(np.ones(3), "w")
    with pytest.raises(synk.CheckpointError, match="inflate to 80,000,128"):
        synk.load(checkpoint, w)
    assert_same(w.get_value(), np.ones(3), 0)
    w.set_value(zeros + 1)  # as long as expected
    synk.load(checkpoint, w)
    assert_same(w.get_value(), zeros, 0)


# -- writing ---------------------------------------------------------------------------


def test_permissions_are_those_of_the_umask_or_of_the_file_before(checkpoint):
    w = shared(np.ones(2), "w")
    for mask in (0o022, 0o077, 0o002):
        before = os.umask(mask)
        try:
            synk.save(checkpoint, w)
        finally:
            os.umask(before)
        assert stat.S_IMODE(checkpoint.stat().st_mode) == 0o666 & ~mask
        checkpoint.unlink()
    synk.save(checkpoint, w)
    for mode in (0o600, 0o640, 0o666):
        checkpoint.chmod(mode)
        synk.save(checkpoint, w)
        assert stat.S_IMODE(checkpoint.stat().st_mode) == mode


def test_where_files_need_names_they_are_written_as_well(checkpoint, monkeypatch):
    real = os.open

    def without(path, flags, *args, **kwargs):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(95, "Operation not supported")
        return real(path, flags, *args, **kwargs)

    w = shared(np.ones(2), "w")
    monkeypatch.setattr(os, "open", without)
    synk.save(checkpoint, w)
    synk.save(checkpoint, w)
    monkeypatch.setattr(os, "replace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        synk.save(checkpoint, w)
    monkeypatch.undo()
    assert os.listdir(checkpoint.parent) == [checkpoint.name]
    overwrite([w])
    synk.load(checkpoint, w)
    assert_same(w.get_value(), np.ones(2), 0)


def test_a_link_stays_a_link(checkpoint):
    real = checkpoint.parent / "elsewhere" / checkpoint.name
    real.parent.mkdir()
    checkpoint.symlink_to(real)
    synk.save(checkpoint, shared(np.ones(2), "w"))
    assert checkpoint.is_symlink()
    assert os.listdir(real.parent) == [checkpoint.name]


def test_the_file_is_on_the_disk_before_it_takes_its_name(checkpoint, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor):
        calls.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def note_replace(source, target):
        calls.append((str(source), str(target)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    synk.save(checkpoint, shared(np.ones(2), "w"))
    written, (source, target), folder = calls
    assert (target, folder) == (str(checkpoint), str(checkpoint.parent))
    assert os.path.dirname(source) == os.path.dirname(written) == folder
    assert source != written  # it had no name


FAULTS = {
    "no space": ("fsync", OSError(28, "No space left on device")),
    "no rename": ("replace", PermissionError(1, "Operation not permitted")),
    "interrupt": ("replace", KeyboardInterrupt()),
    "no memory": ("fchmod", MemoryError()),
}


def test_an_error_leaves_the_old_file_and_nothing_else(checkpoint, monkeypatch):
    w = shared(np.ones(2), "w")
    synk.save(checkpoint, w)
    before = checkpoint.read_bytes()
    overwrite([w])

    def is_as_before():
        assert checkpoint.read_bytes() == before
        assert os.listdir(checkpoint.parent) == [checkpoint.name]

    for name, error in FAULTS.values():

        def fail(*args):
            raise error  # noqa: B023

        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            with pytest.raises(type(error)):
                synk.save(checkpoint, w)
        is_as_before()
    w.set_value(np.ones(100_000))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            synk.save(checkpoint, w)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    is_as_before()


SAVES_FOR_EVER = """
import sys
import numpy as np, pytensor, synk

w = pytensor.shared(np.zeros(200_000), name="w")
for i in range(1_000_000):
    w.set_value(np.full(200_000, float(i)))
    for path in sys.argv[1:]:
        synk.save(path, w)
    print(i, flush=True)
"""


def test_a_kill_at_any_moment_leaves_a_whole_file(tmp_path):
    pytest.importorskip("safetensors")
    paths = [tmp_path / name for name in ("w.npz", "w.safetensors")]
    command = [sys.executable, "-c", SAVES_FOR_EVER, *map(str, paths)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        for _ in range(7):
            last = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
    for path in paths:
        w = shared(np.zeros(1), "w")
        synk.load(path, w)
        value = w.get_value()
        assert value.shape == (200_000,)
        assert np.ptp(value) == 0
        assert value[0] >= last
    left = {path for path in tmp_path.iterdir() if not path.name.startswith(".synk-")}
    assert left == set(paths)
