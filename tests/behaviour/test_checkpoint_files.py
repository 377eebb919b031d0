"""The files of checkpoints: damage is noticed, and writing is all or nothing."""

from __future__ import annotations

import os
import re
import resource
import signal
import stat
import subprocess
import sys

import numpy as np
import pytest
from checkpointing import a_few, check_unchanged, make, overwrite, shared
from reference import assert_same, refused, values_of

import synk
from synk.variables import checkpoint_files

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


def write_plainly(checkpoint, values, compressed=False):
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
    values = {name: value for name, value in a_few().items() if name != "none"}
    write_plainly(checkpoint, values, compressed)
    variables = make(values)
    others = overwrite(variables)
    whole = checkpoint.read_bytes()
    for cut in range(0, len(whole), 3):
        checkpoint.write_bytes(whole[:cut])
        with pytest.raises(synk.CheckpointError):
            synk.load(checkpoint, variables)
    for var, other in zip(variables, others, strict=True):
        assert_same(var.get_value(), other, 0)
    checkpoint.write_bytes(whole)
    synk.load(checkpoint, variables)
    for var, right in zip(variables, values.values(), strict=True):
        assert_same(var.get_value(), right, 0)


UNPICKLED = []


def unpickle(what):
    UNPICKLED.append(what)
    return what


class Evil:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return unpickle, ("evil",)


def test_nothing_is_unpickled(tmp_path):
    checkpoint = tmp_path / "evil.npz"
    np.savez(checkpoint, w=np.array([Evil()], object))
    w = shared(np.zeros(1), "w")
    with pytest.raises(synk.CheckpointError, match="allow_pickle=False"):
        synk.load(checkpoint, w)
    assert not UNPICKLED
    np.load(checkpoint, allow_pickle=True)["w"]
    assert UNPICKLED == ["evil"]  # it would have run


# -- damage ----------------------------------------------------------------------------


def test_a_file_cut_at_any_byte_is_an_error_and_leaves_the_old_values(checkpoint):
    variables = make(a_few(), rng=3)
    synk.save(checkpoint, variables)
    whole = checkpoint.read_bytes()
    assert 200 < len(whole) < 3000
    others = overwrite(variables)
    for cut in range(len(whole)):
        checkpoint.write_bytes(whole[:cut])
        with pytest.raises(synk.CheckpointError, match=r"damaged|no value"):
            synk.load(checkpoint, variables)
    check_unchanged(variables, others)


def test_a_file_cut_short_leaves_the_old_values_on_all_ranks(checkpoint, ranks):
    variables = make(a_few())
    synk.save(checkpoint, variables)
    whole = checkpoint.read_bytes()
    others = overwrite(variables)
    for cut in (0, 1, len(whole) // 3, len(whole) - 1):
        checkpoint.write_bytes(whole[:cut])
        with refused(synk.CheckpointError, "damaged"):
            synk.load(checkpoint, variables)
    for rank in range(ranks):
        loaded = synk.get_value(rank, variables)
        for got, right in zip(loaded, others, strict=True):
            assert_same(got, right, 0)


@pytest.mark.parametrize("flip", [0x01, 0x20, 0x80, 0xFF], ids=hex)
def test_a_changed_byte_is_an_error_or_of_no_consequence(checkpoint, flip):
    values = {"w": values_of("float32", (3, 2), 1), "n": np.int64(-5)[...]}
    variables = make(values, rng=3)
    state = variables[-1].get_value().bit_generator.state
    synk.save(checkpoint, variables)
    whole = checkpoint.read_bytes()
    noticed = 0
    for place in range(len(whole)):
        others = overwrite(variables)
        changed = bytearray(whole)
        changed[place] ^= flip
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


@pytest.mark.parametrize("shape", ["[2,3]", "[6,1]", "[1,6]"])
def test_a_changed_shape_is_noticed(tmp_path, shape):
    checkpoint = tmp_path / "w.safetensors"
    w = shared(values_of("float32", (3, 2), 1), "w")
    synk.save(checkpoint, w)
    (other,) = overwrite([w])
    whole = checkpoint.read_bytes()
    assert whole.count(b"[3,2]") == 1
    checkpoint.write_bytes(whole.replace(b"[3,2]", shape.encode()))
    with pytest.raises(synk.CheckpointError, match="bad checksum of w"):
        synk.load(checkpoint, w)
    check_unchanged([w], [other])


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


# -- writing ---------------------------------------------------------------------------


def test_permissions_are_those_of_the_umask(checkpoint):
    for mask in (0o022, 0o077, 0o002):
        before = os.umask(mask)
        try:
            synk.save(checkpoint, shared(np.ones(2), "w"))
        finally:
            os.umask(before)
        assert stat.S_IMODE(checkpoint.stat().st_mode) == 0o666 & ~mask
        checkpoint.unlink()


def test_a_file_keeps_the_permissions_of_the_one_before(checkpoint):
    w = shared(np.ones(2), "w")
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
    "no space": (os, "fsync", OSError(28, "No space left on device")),
    "no rename": (os, "replace", PermissionError(1, "Operation not permitted")),
    "interrupt": (os, "replace", KeyboardInterrupt()),
    "no memory": (checkpoint_files, "_keep_permissions", MemoryError()),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_error_leaves_the_old_file_and_nothing_else(checkpoint, monkeypatch, fault):
    w = shared(np.ones(2), "w")
    synk.save(checkpoint, w)
    before = checkpoint.read_bytes()
    overwrite([w])
    module, name, error = FAULTS[fault]

    def fail(*args):
        raise error

    monkeypatch.setattr(module, name, fail)
    with pytest.raises(type(error)):
        synk.save(checkpoint, w)
    assert checkpoint.read_bytes() == before
    assert os.listdir(checkpoint.parent) == [checkpoint.name]


def test_a_full_disk_leaves_the_old_file_and_nothing_else(checkpoint):
    w = shared(np.ones(2), "w")
    synk.save(checkpoint, w)
    before = checkpoint.read_bytes()
    w.set_value(np.ones(100_000))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            synk.save(checkpoint, w)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert checkpoint.read_bytes() == before
    assert os.listdir(checkpoint.parent) == [checkpoint.name]


SAVES_FOR_EVER = """
import sys
import numpy as np, pytensor, synk

w = pytensor.shared(np.zeros(200_000), name="w")
for i in range(1_000_000):
    w.set_value(np.full(200_000, float(i)))
    synk.save(sys.argv[1], w)
    print(i, flush=True)
"""


def test_a_kill_at_any_moment_leaves_a_whole_file(checkpoint):
    command = [sys.executable, "-c", SAVES_FOR_EVER, str(checkpoint)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        for _ in range(7):
            last = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
    w = shared(np.zeros(1), "w")
    synk.load(checkpoint, w)
    value = w.get_value()
    assert value.shape == (200_000,)
    assert np.ptp(value) == 0
    assert value[0] >= last
    assert os.listdir(checkpoint.parent) == [checkpoint.name]
