"""Checkpoints: all that is saved comes back on every rank, or an error and nothing."""

import json
import os
import re
import resource
import signal
import stat
import subprocess
import sys

import numpy as np
import pytensor.tensor as pt
import pytest
import scipy.sparse
from on_ranks import assert_on_ranks, by_rank, three_ranks
from processes import ROWS, acting
from pytensor import shared
from reference import DTYPES, PY, SHAPES, assert_same, values_of

import synk

pytestmark = [
    pytest.mark.filterwarnings("ignore:Setting default_update"),
    pytest.mark.filterwarnings("ignore:RandomVariable Ops will stop hiding"),
    pytest.mark.filterwarnings("ignore::FutureWarning:pytensor"),
]

A_FEW = {
    "w": values_of("float32", (3, 2), 1),
    "n": np.int64(-5)[...],
    "none": np.zeros((0, 3), bool),
}
"""Values of several kinds: a small file has all that a large one has."""


def make(values, rng: int | None = None) -> list:
    made = [shared(value, name) for name, value in values.items()]
    if rng is not None:
        made.append(shared(np.random.default_rng(rng), "rng"))
    return made


def overwrite(variables) -> list:
    """Give variables other values, on all ranks if forked; return these."""
    others = []
    for var in variables:
        value = var.get_value()
        if isinstance(value, np.random.Generator):
            value = np.random.default_rng(99)
        else:
            value = value ^ True if value.dtype == bool else value + 3
        others.append(value)
        var.set_value(value)
    if synk.is_forked():
        synk.broadcast(variables)
    return others


def states(values) -> list:
    return [
        value.bit_generator.state if isinstance(value, np.random.Generator) else value
        for value in values
    ]


def check(variables, values) -> None:
    """Assert that variables have these very values."""
    for var, value in zip(variables, values, strict=True):
        if isinstance(value, np.random.Generator):
            assert states([var.get_value()]) == states([value])
        else:
            assert_same(var.get_value(), value, 0)


# -- values ----------------------------------------------------------------------------


@three_ranks
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


def test_no_session_is_needed_and_other_programs_read_the_files(checkpoint):
    variables = make(A_FEW)
    synk.save(checkpoint, variables)
    if checkpoint.suffix == ".npz":
        found = dict(np.load(checkpoint, allow_pickle=False))
    else:
        from safetensors.numpy import load_file

        found = load_file(checkpoint)
    assert sorted(found) == sorted(A_FEW)
    for name, right in A_FEW.items():
        assert_same(found[name], right, 0)
    overwrite(variables)
    synk.load(checkpoint, variables)
    check(variables, A_FEW.values())
    fresh = make({name: np.zeros_like(value) for name, value in A_FEW.items()})
    with synk.session(2):
        synk.load(checkpoint, fresh)  # variables that the ranks have not seen before
        assert_on_ranks(fresh[0], A_FEW["w"], 0)
    synk.save(checkpoint, fresh[0])
    assert_same(fresh[0].get_value(), A_FEW["w"], 0)


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


NAMES = ("file", "allow_pickle", "a/b", "../up", "/root", "x.npy", "x", "Größe", " ")


def test_variables_go_by_any_names_by_those_of_a_dict_or_by_their_places(checkpoint):
    named = make({name: np.full(i + 1, float(i)) for i, name in enumerate(NAMES)})
    a, b = shared(np.ones(2), "same"), shared(np.zeros(2), "same")
    nameless = [shared(np.ones(2)), shared(np.zeros(2))]
    for asked in (named, {"a": a, "b": b}, nameless):
        variables = [*asked.values()] if isinstance(asked, dict) else asked
        before = [var.get_value() for var in variables]
        synk.save(checkpoint, asked)
        others = overwrite(variables)
        if asked is not nameless:  # a file may hold more than is asked for
            first = asked[0] if asked is named else {"a": a}
            synk.load(checkpoint, first)
            check(variables, [before[0], *others[1:]])
        synk.load(checkpoint, asked)
        check(variables, before)
    for others in (nameless[1:], [*nameless, shared(0.0)]):
        with pytest.raises(synk.CheckpointError, match="has no value for unnamed 0 of"):
            synk.load(checkpoint, others)


# -- what does not fit -----------------------------------------------------------------


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


MISFITS = [
    (np.zeros(2), "other", {}, "no value for other; it has generator:bit.*last, w"),
    (np.zeros(2, "float32"), "w", {}, "float64 .*float32"),
    (np.zeros(2, complex), "w", {}, "float64 .*complex128"),
    (np.zeros(2, "int64"), "w", {}, "float64 .*int64"),
    (np.zeros((2, 1)), "w", {}, r"shape \(2,\).*Matrix"),
    (np.zeros(3), "w", {"shape": (3,)}, r"shape \(2,\)"),
    (np.zeros(3, "uint8"), "generator", {}, "no value for generator; it has gen"),
    (np.random.default_rng(3), "w", {}, "no value for w:bit"),
]


def test_what_does_not_fit_is_refused_and_nothing_is_loaded(checkpoint, two_ranks):
    saved = {"w": np.ones(2), "last": np.ones(1), "generator": np.random.default_rng(1)}
    synk.save(checkpoint, make(saved))
    last = shared(np.zeros(1), "last")
    for value, name, options, match in MISFITS:
        misfit = shared(value, name, **options)
        asked = {"last": last, name: misfit}
        synk.broadcast([last, misfit])
        before = states(by_rank(misfit))
        for wanted in (asked, dict(reversed(asked.items()))):
            with pytest.raises(synk.CheckpointError, match=match):
                synk.load(checkpoint, wanted)
        assert_on_ranks(last, np.zeros(1))
        np.testing.assert_equal(states(by_rank(misfit)), before)


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

    class Mine(np.random.PCG64):
        pass

    with pytest.raises(TypeError, match=r"rng draws from Mine: only .*PCG64"):
        synk.save(checkpoint, shared(np.random.Generator(Mine(3)), "rng"))
    z = shared(np.ones(2, "complex64"), "z")
    if checkpoint.suffix != ".npz":
        with pytest.raises(TypeError, match=r"z is complex64.*use \.npz"):
            synk.save(checkpoint, z)
    assert not os.listdir(checkpoint.parent)
    synk.save(checkpoint, [])
    synk.load(checkpoint, [])


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


def save_and_load(path) -> None:
    for call in (synk.save, synk.load):
        with pytest.raises(synk.StateError, match="only the master"):
            call(path, [])


def test_ranks_are_refused(checkpoint, two_ranks):
    acting(1, save_and_load, str(checkpoint))(ROWS)
    assert not checkpoint.exists()


# -- training that goes on -------------------------------------------------------------

STEPS, STOP = 6, 3
KINDS = ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"]


def build(seed: int):
    """Return a step with noise that Adam makes, its parameters, and all it updates."""
    x, y = pt.matrix("x"), pt.vector("y")
    start = np.random.default_rng(seed)
    w, rng = shared(start.normal(size=(3, 2)), "w"), shared(start, "rng")
    noise = pt.random.normal(0, 0.5, size=x.shape, rng=rng)
    rng.default_update = noise.owner.outputs[0]
    loss = ((pt.tanh((x + noise) @ w).sum(axis=1) - y) ** 2).mean()
    updates = synk.updates.adam(loss, [w], learning_rate=0.1)
    step = synk.function([x, y], loss, updates=updates, mode=PY)
    assert set(step.updated) == {*updates, rng}
    return step, [w], step.updated


def train(step, start: int, stop: int) -> list[np.ndarray]:
    random = np.random.default_rng(5)
    X, Y = random.normal(size=(STEPS, 7, 3)), random.normal(size=(STEPS, 7))
    return [step(X[i], Y[i], num_slices=1 + i % 2) for i in range(start, stop)]


def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(tmp_path):
    checkpoint = tmp_path / "training.npz"
    with synk.session(3):
        step, _, variables = build(1)
        train(step, 0, STOP)
        synk.save(checkpoint, variables)
        right = train(step, STOP, STEPS), [*map(states, by_rank(variables))]
    with synk.session(3):
        step, params, variables = build(2)
        train(step, 0, 1)
        # Without the rule's state, or the streams, the run goes on, and differs.
        for some in (params, variables[:-1], variables):
            synk.load(checkpoint, variables)
            train(step, 0, 1)
            synk.load(checkpoint, some)
            found = train(step, STOP, STEPS)
            assert (found == right[0]) == (some is variables)
        np.testing.assert_equal([*map(states, by_rank(variables))], right[1])


def test_on_another_number_of_ranks_streams_derive_from_that_of_rank_0(checkpoint):
    rng = shared(np.random.default_rng(3), "rng")

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


def test_a_generator_goes_on_where_it_was(checkpoint):
    def half_a_draw(generator):  # what is left of 64 bits is kept for the next one
        return generator.integers(0, 9, 3, dtype=np.uint32)

    for kind in KINDS:
        generator = np.random.Generator(getattr(np.random, kind)(3))
        half_a_draw(generator)
        rng = shared(generator, "rng")
        synk.save(checkpoint, rng)
        rng.set_value(np.random.default_rng(1))
        synk.load(checkpoint, rng)
        loaded = rng.get_value()
        for draw in (half_a_draw, lambda g: g.normal(size=100)):
            np.testing.assert_array_equal(draw(loaded), draw(generator), kind)


PCG64 = {"bit_generator": "PCG64", "state": {"state": -1, "inc": 1}}
NO_STATES = [
    *("", "[]", "{}", "[3]", '[{"bit_generator": "Mine"}]'),
    '[{"bit_generator": "PCG64"}]',
    '[{"bit_generator": "MT19937", "state": {"key": [], "pos": 0}}]',
    json.dumps([PCG64 | {"state": {"state": "x", "inc": 1}}]),
    json.dumps([PCG64 | {"has_uint32": 0, "uinteger": 0}]),
]


def test_a_state_that_is_none_is_an_error(tmp_path):
    checkpoint = tmp_path / "rng.npz"

    def check_refused(kind, texts, match):
        rng = shared(np.random.Generator(getattr(np.random, kind)(3)), "rng")
        before = rng.get_value().bit_generator.state
        for text in texts:
            content = np.frombuffer(text.encode(), np.uint8)
            np.savez(checkpoint, **{"rng:bit_generators": content})
            with pytest.raises(synk.CheckpointError, match=match):
                synk.load(checkpoint, rng)
            np.testing.assert_equal(rng.get_value().bit_generator.state, before)

    check_refused("PCG64", NO_STATES, "rng:bit_generators, uint8")
    # A place in a generator's numbers at which it has none: NumPy would read there.
    for kind, field in (("MT19937", "pos"), ("Philox", "buffer_pos")):
        rng = shared(np.random.Generator(getattr(np.random, kind)(1)), "rng")
        synk.save(checkpoint, rng)
        (text,) = (array.tobytes().decode() for array in np.load(checkpoint).values())
        place = re.search(rf'"{field}": \d+', text)[0]
        wrong = (300_000_000, 625, -1, "null", 2.5)
        check_refused(
            kind, [text.replace(place, f'"{field}": {n}') for n in wrong], field
        )


# -- damage, and files of other programs -----------------------------------------------


def write(checkpoint, values, how) -> None:
    """Write a file by synk, or as other programs do."""
    if how == "by synk":
        synk.save(checkpoint, make(values))
    elif checkpoint.suffix == ".npz":
        save = np.savez_compressed if how == "compressed" else np.savez
        save(checkpoint, **values)
    else:
        from safetensors.numpy import save_file

        save_file(values, checkpoint)


@pytest.mark.parametrize("how", ["by synk", "plainly", "compressed"])
@three_ranks
def test_a_file_cut_at_any_byte_is_an_error_and_leaves_the_old_values(
    checkpoint, how, ranks
):
    if how == "compressed" and checkpoint.suffix != ".npz":
        return
    values = {name: value for name, value in A_FEW.items() if name != "none"}
    write(checkpoint, values, how)
    variables = make(values)
    others = overwrite(variables)
    whole = checkpoint.read_bytes()
    assert 100 < len(whole) < 3000
    for cut in {*range(0, len(whole), 5), *range(len(whole) - 40, len(whole))}:
        checkpoint.write_bytes(whole[:cut])
        with pytest.raises(synk.CheckpointError, match=r"damaged|no value"):
            synk.load(checkpoint, variables)
    for var, other in zip(variables, others, strict=True):
        assert_on_ranks(var, other, 0)
    checkpoint.write_bytes(whole)
    synk.load(checkpoint, variables)
    for var, value in zip(variables, values.values(), strict=True):
        assert_on_ranks(var, value, 0)


class Evil:
    """Leaves a folder when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_nothing_is_unpickled(tmp_path):
    checkpoint, trace = tmp_path / "evil.npz", tmp_path / "trace"
    np.savez(checkpoint, w=np.array([Evil(trace)], object))
    with pytest.raises(synk.CheckpointError, match="allow_pickle=False"):
        synk.load(checkpoint, shared(np.zeros(1), "w"))
    assert not trace.exists()
    np.load(checkpoint, allow_pickle=True)["w"]
    assert trace.exists()  # it would have run


def test_a_changed_byte_is_an_error_or_of_no_consequence(checkpoint):
    values = {"w": A_FEW["w"], "n": A_FEW["n"]}
    variables = make(values, rng=3)
    right = [*values.values(), np.random.default_rng(3)]
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
            check(variables, others)
        else:  # a date, say, or a checksum's own field that nobody reads
            check(variables, right)
    assert noticed > len(whole) / 2


@pytest.mark.parametrize(
    ("suffix", "place", "others", "match"),
    [
        (".npz", b"(3, 2), }        ", [b"(888888888, 2), }"], "Bad CRC"),
        (".safetensors", b"[3,2]", [b"[2,3]", b"[6,1]", b"[1,6]"], "bad checksum of w"),
    ],
)
def test_a_changed_shape_is_noticed_before_it_asks_for_memory(
    tmp_path, monkeypatch, suffix, place, others, match
):
    checkpoint = tmp_path / f"w{suffix}"
    w = shared(A_FEW["w"], "w")
    synk.save(checkpoint, w)
    before = overwrite([w])
    whole = checkpoint.read_bytes()
    assert whole.count(place) == 1
    monkeypatch.setattr(
        np.lib.format, "read_array", lambda *_, **__: pytest.fail("read")
    )
    for other in others:
        checkpoint.write_bytes(whole.replace(place, other))
        with pytest.raises(synk.CheckpointError, match=match):
            synk.load(checkpoint, w)
    check([w], before)


def test_what_is_none_of_its_format_or_not_there_is_an_error(checkpoint):
    w = shared(np.zeros(3), "w")
    for content in (b"", b"\0" * 100, b"PK", b"hello" * 100, b"\xff" * 40):
        checkpoint.write_bytes(content)
        with pytest.raises(synk.CheckpointError, match=f"{checkpoint.name} is damaged"):
            synk.load(checkpoint, w)
    assert issubclass(synk.CheckpointError, ValueError)
    checkpoint.unlink()
    with pytest.raises(FileNotFoundError):
        synk.load(checkpoint, w)
    checkpoint.mkdir()
    with pytest.raises(IsADirectoryError):
        synk.load(checkpoint, w)
    with pytest.raises(OSError):
        synk.save(checkpoint, w)
    assert os.listdir(checkpoint.parent) == [checkpoint.name]


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
    w, link = shared(np.ones(2), "w"), checkpoint.parent / f"link{checkpoint.suffix}"
    link.symlink_to(checkpoint)
    for mask in (0o022, 0o077, 0o002):
        before = os.umask(mask)
        try:
            synk.save(link, w)
        finally:
            os.umask(before)
        assert stat.S_IMODE(checkpoint.stat().st_mode) == 0o666 & ~mask
        checkpoint.unlink()
    synk.save(link, w)
    for mode in (0o600, 0o640, 0o666):
        checkpoint.chmod(mode)
        synk.save(link, w)
        assert stat.S_IMODE(checkpoint.stat().st_mode) == mode
    assert link.is_symlink()
    assert sorted(os.listdir(checkpoint.parent)) == sorted([checkpoint.name, link.name])


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
    "fsync": OSError(28, "No space left on device"),
    "replace": KeyboardInterrupt(),
    "fchmod": MemoryError(),
}


@pytest.mark.parametrize("nameless", [True, False])
def test_an_error_leaves_the_old_file_and_nothing_else(
    checkpoint, monkeypatch, nameless
):
    """Also where a file system has no files without names."""
    really_open = os.open

    def without(path, flags, *args, **kwargs):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(95, "Operation not supported")
        return really_open(path, flags, *args, **kwargs)

    if not nameless:
        monkeypatch.setattr(os, "open", without)
    w = shared(np.ones(2), "w")
    synk.save(checkpoint, w)
    synk.save(checkpoint, w)
    before = checkpoint.read_bytes()
    overwrite([w])

    def refused(error, **match):
        with pytest.raises(error, **match):
            synk.save(checkpoint, w)
        assert checkpoint.read_bytes() == before
        assert os.listdir(checkpoint.parent) == [checkpoint.name]

    for name, error in FAULTS.items():

        def fail(*args):
            raise error  # noqa: B023

        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            refused(type(error))
    w.set_value(np.ones(100_000))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        refused(OSError, match="too large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    synk.load(checkpoint, w)
    assert_same(w.get_value(), np.ones(2), 0)


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
