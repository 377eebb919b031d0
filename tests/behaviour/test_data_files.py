"""`synk.files`: rows in files, beside numpy's slices and training on arrays."""

import contextlib
import os
import signal
import sys
import threading

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from on_ranks import three_ranks
from reference import PY

import synk
from synk.rules import EASGD

H, W, CROP, SPARE = 12, 10, 7, (5, 3)
COUNTS = (9, 4, 9, 8)
ROWS = sum(COUNTS)


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert [t.name for t in threading.enumerate() if t.name == "synk-files"] == []


def made_up(rows=ROWS):
    """Return images whose pixels say where they are: of axes b, c, 0, 1."""
    images = np.empty((rows, 3, H, W), np.uint8)
    images[:, 0], images[:, 1] = np.arange(H)[:, None], np.arange(W)
    images[:, 2] = np.arange(rows)[:, None, None]
    return images


IMAGES = made_up()


def pieces(array, counts=COUNTS):
    return np.split(array, np.cumsum(counts)[:-1])


def in_layout(images, layout):
    return images.transpose(["bc01".index(axis) for axis in layout])


def write(folder, array=IMAGES, layout="bc01", counts=COUNTS):
    folder.mkdir(exist_ok=True)
    for i, piece in enumerate(pieces(array, counts)):
        np.save(folder / f"{i}.npy", np.ascontiguousarray(in_layout(piece, layout)))
    return folder


def write_hdf5(folder, arrays, **options):
    """Write the rows of arrays to datasets of several files."""
    h5py = pytest.importorskip("h5py")
    for name, array in arrays.items():
        for i, piece in enumerate(pieces(array)):
            with h5py.File(folder / f"{i}.h5", "a") as file:
                file.create_dataset(name, data=piece, **options)


def part_of(image, like):
    """Return the part of an image that another one must be: it says itself which."""
    top, left = int(like[0].min()), int(like[1].min())
    part = image[:, top : top + CROP, left : left + CROP]
    is_mirrored = like[1, 0, 0] > like[1, 0, -1]
    return part[..., ::-1] if is_mirrored else part


def sequence(rows, batch_size, epoch=0, **options):
    """Return an epoch's inputs as they come, one after the other."""
    found = [
        [np.array(array[batch]) for array in part.inputs]
        for part in rows.parts(epoch, batch_size, **options)
        for batch in part.batches
    ]
    return [np.concatenate(arrays) for arrays in zip(*found, strict=True)]


# -- images ----------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["bc01", "c01b", "b01c", "01cb"])
def test_images_are_parts_of_those_in_the_files(layout, tmp_path):
    folder = write(tmp_path, layout=layout)
    rows = synk.files.images(folder, layout=layout, crop=CROP, mirror=True)
    [images] = rows.take(np.arange(ROWS), epoch=3)
    assert images.dtype == np.float32
    for image, whole in zip(images, IMAGES, strict=True):
        np.testing.assert_array_equal(image, part_of(whole, image))
    assert len({tuple(image[:2, 0, 0]) for image in images}) > 5


def test_means_are_subtracted_and_quotients_are_numpys(tmp_path):
    random = np.random.default_rng(0)
    np.save(tmp_path / "img_mean.npy", mean := random.normal(100, 50, (3, H, W)))
    folder = write(tmp_path / "files", layout="c01b")
    std = 255 * np.array([0.229, 0.224, 0.225])
    how = {"layout": "c01b", "crop": (CROP, CROP), "mirror": True}
    plain = synk.files.images(folder, **how).take(np.arange(ROWS), epoch=1)[0]
    rows = synk.files.images(folder, mean=tmp_path / "img_mean.npy", std=std, **how)
    [images] = rows.take(np.arange(ROWS), epoch=1)
    quotients = (IMAGES - mean.astype("f4")) / std.astype("f4")[:, None, None]
    for image, whole, place in zip(images, quotients, plain, strict=True):
        right = np.ascontiguousarray(part_of(whole, place))
        assert right.tobytes() == image.tobytes()


def test_for_validation_it_is_the_centre_in_the_order_of_the_files(tmp_path):
    how = {"labels": np.arange(ROWS), "crop": CROP, "mirror": True, "training": False}
    rows = synk.files.images(write(tmp_path), **how)
    images, labels = sequence(rows, 8, epoch=5, shuffle=False)
    np.testing.assert_array_equal(labels, np.arange(ROWS))
    np.testing.assert_array_equal(images, IMAGES[:, :, 2 : 2 + CROP, 1 : 1 + CROP])


def test_every_place_is_as_likely_and_half_are_mirrored(tmp_path):
    """Theano-MPI rounded a uniform number: both ends were half as likely."""
    n, epochs = 2000, 5
    folder = write(tmp_path, np.broadcast_to(IMAGES[:1], (n, 3, H, W)), counts=[n])
    rows = synk.files.images(folder, crop=CROP, mirror=True, dtypes=["uint8"])
    drawn = np.stack([rows.take(np.arange(n), epoch=e)[0] for e in range(epochs)])
    tops, lefts = drawn[..., 0, 0, 0], drawn[..., 1, :, :].min((-1, -2))
    flips = drawn[..., 1, 0, 0] > drawn[..., 1, 0, -1]
    places = (SPARE[0] + 1) * (SPARE[1] + 1)
    counts = np.bincount((tops * (SPARE[1] + 1) + lefts).ravel(), minlength=places)
    assert len(counts) == places

    def is_binomial(count, total, p):
        return abs(count - total * p) < 5 * np.sqrt(total * p * (1 - p))

    assert all(is_binomial(count, n * epochs, 1 / places) for count in counts)
    assert is_binomial(flips.sum(), n * epochs, 1 / 2)
    # Draws of neighbours, of an image in two epochs, and of place and mirror.
    assert is_binomial((flips[:, 1:] == flips[:, :-1]).sum(), (n - 1) * epochs, 1 / 2)
    assert is_binomial((flips[1:] == flips[:-1]).sum(), n * (epochs - 1), 1 / 2)
    assert is_binomial((flips & (lefts < 2)).sum(), n * epochs, 1 / 4)


def test_images_without_channels_and_of_other_dtypes(tmp_path):
    for i, dtype in enumerate(["uint8", "float16", ">f4", "bool"]):
        folder = tmp_path / str(i)
        folder.mkdir()
        np.save(folder / "0.npy", np.asfortranarray(IMAGES[:, 0].astype(dtype)))
        [images] = synk.files.images(folder, layout="b01", crop=(H, 4)).take([2, 0])
        expected = IMAGES[:1, 0, :, :4].astype(dtype)
        np.testing.assert_array_equal(images, np.repeat(expected, 2, axis=0))


# -- the order of an epoch -------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 2, 9])
def test_rows_come_once_and_from_few_files_at_a_time(window, tmp_path):
    folder = write(tmp_path)
    rows = synk.files.images(folder, labels=np.arange(ROWS), window=window)
    orders = [sequence(rows, 7, epoch)[1] for epoch in range(6)]
    files = np.repeat(np.arange(len(COUNTS)), COUNTS)
    for order in orders:
        assert sorted(order) == list(range(ROWS))
        changes = np.count_nonzero(np.diff(files[order]))
        assert changes == 3 if window == 1 else changes > 3
    assert len({tuple(order) for order in orders}) == 6
    assert len({tuple(dict.fromkeys(files[order])) for order in orders}) > 1
    np.testing.assert_array_equal(sequence(rows, 7, 2)[1], orders[2])
    assert not np.array_equal(sequence(rows, 7, 2, seed=1)[1], orders[2])
    in_place = sequence(rows, 7, 2, shuffle=False)[1]
    np.testing.assert_array_equal(in_place, np.arange(ROWS))


def test_batches_have_one_size_but_for_the_last(tmp_path):
    rows = synk.files.images(write(tmp_path), labels=np.arange(ROWS))
    for batch_size in (1, 4, 7, 10, 16, 100):
        sizes = []
        for part in rows.parts(0, batch_size):
            sizes += [batch.stop - batch.start for batch in part.batches]
            assert [len(array) for array in part.inputs] == [part.batches[-1].stop] * 2
        full, rest = divmod(ROWS, batch_size)
        assert sizes == [batch_size] * full + [rest] * (rest > 0)


def test_images_are_the_same_for_any_ranks_and_batches(tmp_path):
    folder = write(tmp_path, layout="c01b")
    rows = synk.files.images(
        folder, labels=np.arange(ROWS), layout="c01b", crop=CROP, mirror=True, mean=3.0
    )
    expected = sequence(rows, ROWS, epoch=4, seed=2)
    x, y = pt.tensor4("x", dtype="float32"), pt.lvector("y")
    f = synk.function([x, y], [(x, "gather"), (y, "gather")], mode=PY)
    for ranks, batch_size in [(1, 8), (3, 7)]:
        with synk.session(ranks):
            found = [
                [np.concatenate(list(output)) for output in outputs]
                for part in rows.parts(4, batch_size, seed=2)
                for outputs in [f.run(part.batches, *part.inputs)]
            ]
        for one, other in zip(zip(*found, strict=True), expected, strict=True):
            assert np.concatenate(one).tobytes() == other.tobytes()


def test_rows_are_taken_by_number(tmp_path):
    rows = synk.files.images(write(tmp_path), labels=np.arange(ROWS))
    images, labels = rows.take([29, 3, 3, 9])
    np.testing.assert_array_equal(labels, [29, 3, 3, 9])
    np.testing.assert_array_equal(images, IMAGES[[29, 3, 3, 9]])
    assert rows.take([])[0].shape == (0, 3, H, W)
    with pytest.raises(IndexError, match="rows are from 0 to 29"):
        rows.take([30])


# -- training --------------------------------------------------------------------------

TARGETS = np.random.default_rng(1).normal(size=ROWS).astype("f4")


def make(local=False, others=()):
    """Return a step of linear regression on images, its parameter and its error.

    They take other inputs too, which count for nothing.
    """
    x, y = pt.tensor4("x", dtype="float32"), pt.vector("y", dtype="float32")
    inputs, options = [x, y, *others], {"mode": PY, "on_unused_input": "ignore"}
    w = pytensor.shared(np.zeros(3 * CROP * CROP, "f4"), "w")
    loss = ((x.reshape((x.shape[0], -1)) @ w - y) ** 2).mean()
    grad = pytensor.grad if local else synk.grad
    updates = synk.updates.sgd(grad(loss, [w]), [w], np.float32(1e-5))
    step = synk.function(inputs, loss, updates=updates, local=local, **options)
    return step, w, synk.function(inputs, loss, **options)


class FromMemory:
    """The same rows in the same order, all of them in memory: a script's own source."""

    def __init__(self, rows):
        self.rows = rows

    def parts(self, epoch, batch_size, *, seed, shuffle):
        order = sequence(self.rows, ROWS, epoch, seed=seed, shuffle=shuffle)[2]
        inputs = self.rows.take(np.arange(ROWS), epoch, seed=seed)
        batches = [order[i : i + batch_size] for i in range(0, ROWS, batch_size)]
        yield synk.files.Part(batches, tuple(inputs))


@three_ranks
@pytest.mark.parametrize("rule", [None, EASGD(2, order="turns")], ids=repr)
def test_training_on_files_is_training_on_the_same_arrays(ranks, rule, tmp_path):
    write_hdf5(tmp_path, {"x": IMAGES, "y": TARGETS, "row": np.arange(ROWS)})
    names, numbers, ends = ["x", "y", "row"], pt.lvector("row"), []
    rows = synk.files.images(tmp_path, names, crop=CROP, mirror=True)
    for source in (rows, FromMemory(rows)):
        step, w, error = make(rule is not None, [numbers])
        trainer = synk.Trainer(step, [w], rule, seed=3)
        how = {"batch_size": 8, "epochs": 2, "progress": False}
        history = trainer.fit(source, validation=(error, source), **how)
        ends.append((w.get_value().tobytes(), history.losses, history["loss"]))
        expected = float(error(*rows.take(np.arange(ROWS), seed=0)))
        np.testing.assert_allclose(history["val_loss"][-1], expected, rtol=1e-5)
    assert ends[0] == ends[1]
    assert len(history.losses) == 8  # of 8, 8, 8 and 6 rows, twice
    losses = history.losses[:4]
    mean = np.average(losses, weights=[8, 8, 8, 6])
    np.testing.assert_allclose(history["loss"][0], mean, rtol=1e-6)
    assert all(epoch["reading"] >= 0 for epoch in history.epochs)


@three_ranks
def test_inputs_without_rows_follow_and_validation_combines_as_ranks_do(
    ranks, tmp_path
):
    rows = synk.files.images(write(tmp_path), labels=TARGETS, training=False)
    x, y = pt.tensor4("x", dtype="float32"), pt.vector("y", dtype="float32")
    rate = pt.scalar("rate", dtype="float32")
    w = pytensor.shared(np.float32(0), "w")
    options = {"mode": PY, "on_unused_input": "ignore"}
    step = synk.function(
        [x, y], (x.sum() * w - y).sum(), [rate], {w: w + rate}, **options
    )
    outputs = [y.mean(), (y.sum(), "sum"), (y.max(), "max")]
    f = synk.function([x, y], outputs, **options)
    gathers = synk.function([x, y], y + 1, **options)
    trainer = synk.Trainer(step, [w])
    how = {"batch_size": 10, "progress": False}
    history = trainer.fit(rows, np.float32(0.5), validation=(f, rows), **how)
    assert w.get_value() == 1.5
    found = [history[name][0] for name in ("val_loss", "val_1", "val_2")]
    expected = [TARGETS.mean(), TARGETS.sum(), TARGETS.max()]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for function, error, match in (
        (gathers, ValueError, "cannot be combined over batches"),
        (len, TypeError, r"synk\.function returns"),
    ):
        with pytest.raises(error, match=match):
            trainer.fit(rows, np.float32(0.5), validation=(function, rows), **how)


# -- arrays, labels, and HDF5 ----------------------------------------------------------


def test_rows_of_numbers_are_those_in_the_files(tmp_path):
    table = np.random.default_rng(0).normal(size=(ROWS, 2, 5))
    for i, piece in enumerate(pieces(table)):
        np.save(tmp_path / f"{i}.npy", np.asfortranarray(piece) if i == 2 else piece)
    paths = sorted(tmp_path.iterdir())
    for dtype in (None, "float32"):
        rows = synk.files.arrays(paths, labels=np.arange(ROWS), dtypes=[dtype, "int32"])
        found, order = sequence(rows, 6)
        assert order.dtype == np.int32
        assert found.tobytes() == table[order].astype(dtype).tobytes()
    labels = np.where(np.arange(ROWS) < 13, 1, 300)
    np.save(tmp_path / "labels.npy", labels[:, None])
    narrow = synk.files.arrays(tmp_path / "labels.npy", dtypes=["uint8"])
    with pytest.raises(ValueError, match=r"labels\.npy: numbers from 1 to 300, which"):
        narrow.take([0])
    assert repr(rows) == ("<synk.files.Rows 30 in 4 files: float32 (2, 5), int32 ()>")


def test_labels_come_from_a_file_and_fit(tmp_path):
    folder = write(tmp_path / "train", layout="c01b")
    np.save(tmp_path / "train_labels.npy", np.arange(ROWS)[::-1])
    read = synk.files.images(
        folder, labels=tmp_path / "train_labels.npy", layout="c01b"
    )
    np.testing.assert_array_equal(read.take([0, 9])[1], [ROWS - 1, ROWS - 10])
    with pytest.raises(ValueError, match="there are 29 labels for 30 rows"):
        synk.files.images(folder, labels=np.arange(ROWS - 1), layout="c01b")
    labels = np.where(np.arange(ROWS) < 9, 0, np.arange(ROWS) * 1000)
    with pytest.raises(ValueError, match="from 9000 to 12000, which int8 does not"):
        synk.files.images(folder, labels=labels, layout="c01b", dtypes=["f4", "i1"])
    with pytest.raises(TypeError, match="labels: float32 cannot be int32"):
        synk.files.images(folder, labels=TARGETS, layout="c01b", dtypes=["f4", "i4"])


@pytest.mark.parametrize("kind", ["data_0", "data", "compressed"])
def test_hickles_files_are_read_and_nothing_is_unpickled(kind, tmp_path):
    h5py = pytest.importorskip("h5py")
    for i, piece in enumerate(pieces(IMAGES)):
        with h5py.File(tmp_path / f"{i:04}.hkl", "w") as file:
            array = np.ascontiguousarray(in_layout(piece, "c01b"))
            how = {"compression": "gzip"} if kind == "compressed" else {}
            name = "group/array" if kind == "data" else "data_0"
            data = file.create_dataset(name, data=array, **how)
            # What raises if it is unpickled.
            data.attrs["type"] = np.void(b"cbuiltins\neval\n(V1/0\ntR.")
            file["type"] = "pickled"
            file.attrs["CLASS"] = "hickle"
    rows = synk.files.images(tmp_path, layout="c01b", labels=np.arange(ROWS))
    images, order = sequence(rows, 8)
    np.testing.assert_array_equal(images, IMAGES[order])


def test_groups_are_lists_of_inputs_by_name(tmp_path):
    table = np.random.default_rng(0).normal(size=(ROWS, 4))
    named = {"b": table, "a": table[:, 0], "z/deep": table[:, 1:3]}
    named = {f"features/{name}": array for name, array in named.items()}
    write_hdf5(tmp_path, named | {"labels": table[:, 3] > 0})
    rows = synk.files.arrays(tmp_path, ["features", "labels"])
    a, b, deep, labels = rows.take(np.arange(ROWS))
    np.testing.assert_array_equal(a, table[:, 0])
    np.testing.assert_array_equal(b, table)
    np.testing.assert_array_equal(deep, table[:, 1:3])
    np.testing.assert_array_equal(labels, table[:, 3] > 0)
    with pytest.raises(ValueError, match="say by names="):
        synk.files.arrays(tmp_path)
    with pytest.raises(ValueError, match=r"0\.h5: no dataset or group 'targets'"):
        synk.files.arrays(tmp_path, ["features", "targets"])


def test_without_h5py_the_extra_is_named(tmp_path, monkeypatch):
    (tmp_path / "0.hkl").touch()
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match=r"0\.hkl.* pip install 'synk\[hdf5\]'"):
        synk.files.images(tmp_path)


# -- errors ----------------------------------------------------------------------------


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-1])


def an_archive(path):
    with path.open("wb") as file:
        np.savez(file, IMAGES)


DAMAGES = {
    "cut short": cut_short,
    "longer": lambda path: np.save(path, np.repeat(IMAGES[:9], 3, axis=2)),
    "of another shape": lambda path: np.save(path, IMAGES[:4, :, 1:]),
    "of another dtype": lambda path: np.save(path, IMAGES[:4].astype("f8")),
    "of objects": lambda path: np.save(path, np.array([{}, None])),
    "of words": lambda path: np.save(path, np.array(["a", "b"])),
    "an archive": an_archive,
    "no array": lambda path: path.write_bytes(b"not at all"),
}


def test_a_file_that_does_not_fit_is_named(tmp_path):
    for what, damage in DAMAGES.items():
        folder = write(tmp_path / what)
        damage(folder / "1.npy")
        with pytest.raises(ValueError, match=r"1\.npy: "):
            synk.files.images(folder)


def test_a_damaged_file_of_hdf5_is_named(tmp_path):
    write_hdf5(tmp_path, {"x": IMAGES})
    cut_short(tmp_path / "2.h5")
    with pytest.raises(ValueError, match=r"2\.h5: "):
        synk.files.images(tmp_path, ["x"])


def test_arguments_that_do_not_fit(tmp_path):
    folder = write(tmp_path / "files")
    for options, message in [
        ({"layout": "bc02"}, "layout must have"),
        ({"layout": "b01"}, "'b01' is of 3 axes"),
        ({"crop": 11}, "crop=11 is no part of images of 12 x 10"),
        ({"crop": 0}, "crop=0 is no part"),
        ({"mean": np.zeros((3, 5, 5))}, r"mean has shape \(3, 5, 5\)"),
        ({"std": [1, 0, 1]}, "std has zeros"),
        ({"window": 0}, "window must be at least 1"),
        ({"dtypes": ["f4", "i4"]}, "dtypes are of 1 inputs"),
    ]:
        with pytest.raises(ValueError, match=message):
            synk.files.images(folder, **options)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        synk.files.images(folder).parts(0, 0)
    for arguments, options, error, message in [
        ([folder], {"mean": 1, "dtypes": ["u1"]}, TypeError, "std is for floats"),
        ([folder, "x"], {}, TypeError, r"names is a list: \['x'\]"),
        ([tmp_path], {}, ValueError, "no files that end in"),
        ([[tmp_path / "missing.npy"]], {}, FileNotFoundError, "missing"),
        ([[tmp_path / "x.txt"]], {}, ValueError, r"x\.txt: it does not end in"),
    ]:
        with pytest.raises(error, match=message):
            synk.files.images(*arguments, **options)


# -- the thread ------------------------------------------------------------------------


def threads():
    return [t for t in threading.enumerate() if t.name == "synk-files"]


@three_ranks
def test_what_ends_training_early_leaves_no_thread(ranks, tmp_path):
    folder = write(tmp_path)
    rows = synk.files.images(folder, labels=TARGETS, crop=CROP)
    step, w, _ = make()
    trainer = synk.Trainer(step, [w])
    how = {"batch_size": 8, "progress": False}
    end = [lambda trainer, numbers: True]
    assert len(trainer.fit(rows, epochs=5, callbacks=end, **how)) == 1
    assert not threads()
    whole = (folder / "2.npy").read_bytes()
    for what in ("cut short", "of another shape", "longer"):
        DAMAGES[what](folder / "2.npy")
        with pytest.raises(ValueError, match=r"2\.npy: "):
            trainer.fit(rows, **how)
        assert not threads()
    (folder / "2.npy").write_bytes(whole)
    with pytest.raises(ValueError, match="it has changed since it was found"):
        trainer.fit(rows, **how)
    rows = synk.files.images(folder, labels=TARGETS, crop=CROP)
    assert len(trainer.fit(rows, **how)) == 2

    def stop(calls):
        raise ZeroDivisionError

    def train():
        for part in rows.parts(0, 4):
            step.run(part.batches, *part.inputs, progress=stop)

    with pytest.raises(ZeroDivisionError):
        train()
    assert not threads()


def compressed(folder):
    """Return rows of files that h5py reads, in the thread."""
    write_hdf5(folder, {"rows": np.arange(ROWS)}, compression="gzip")
    return synk.files.arrays(folder)


class Slow:
    """Has every thread but the first wait with its reading; tells when and where."""

    def __init__(self, monkeypatch):
        import h5py

        self.began, self.goes_on = threading.Event(), threading.Event()
        opened, seen = h5py.File, []

        def blocked(*args, **options):
            seen.append(threading.current_thread())
            if seen[-1] is not seen[0]:
                self.cores = os.sched_getaffinity(0)
                self.began.set()
                assert self.goes_on.wait(60)
            return opened(*args, **options)

        monkeypatch.setattr(h5py, "File", blocked)


def test_the_next_files_are_read_meanwhile_on_all_cores(tmp_path, monkeypatch):
    cores, rows = os.sched_getaffinity(0), compressed(tmp_path)
    slow = Slow(monkeypatch)
    with synk.session(2):
        parts = rows.parts(0, 8)
        first = next(parts)
        assert slow.began.wait(60)  # while this thread has the first part
        many = len(first.inputs[0])
        slow.goes_on.set()
        assert many + sum(len(part.inputs[0]) for part in parts) == ROWS
    assert slow.cores == cores


@pytest.mark.parametrize("way", ["break", "error", "interrupt"])
def test_whoever_leaves_waits_for_the_thread(way, tmp_path, monkeypatch):
    rows = compressed(tmp_path)
    expected = sequence(rows, 8)
    slow = Slow(monkeypatch)
    timer = threading.Timer(0.2, slow.goes_on.set)

    def leave():
        for _ in rows.parts(0, 8):
            assert slow.began.wait(60)
            assert threads()
            timer.start()
            if way == "error":
                raise ZeroDivisionError
            if way == "interrupt":
                signal.raise_signal(signal.SIGINT)
            break

    with contextlib.suppress(ZeroDivisionError, KeyboardInterrupt):
        leave()
    assert slow.goes_on.is_set()
    assert not threads()
    np.testing.assert_array_equal(sequence(rows, 8), expected)
