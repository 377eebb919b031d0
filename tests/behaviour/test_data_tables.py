"""`synk.files.table`: columns of tables as rows, beside what they were made of."""

import gc
import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from reference import PY

import synk

pytest.importorskip("pyarrow", reason="pyarrow, of synk[tables], is missing")

import pyarrow as pa
from pyarrow import parquet

ROWS, CUTS = 500, [170, 171, 400]
RNG = np.random.default_rng(3)
TABLE = {
    "a": RNG.normal(size=ROWS).round(6),
    "b": RNG.normal(size=ROWS).astype("float32").round(3),
    "n": RNG.integers(-5, 5, ROWS).astype("int16"),
    "t": RNG.integers(0, 2, ROWS) == 1,
}
WORDS = RNG.choice(["one", "two", "three"], ROWS)


def parts(columns):
    """Yield the columns of a table, cut into files."""
    for low, high in zip([0, *CUTS], [*CUTS, ROWS], strict=True):
        yield {name: values[low:high] for name, values in columns.items()}


def write(folder, end, columns):
    folder.mkdir()
    if end == "zarr":
        zarr = pytest.importorskip("zarr")
        group = zarr.open_group(str(folder / "table.zarr"), mode="w")
        for name, values in columns.items():
            group.create_array(name, data=values, chunks=(64, *values.shape[1:]))
        return folder / "table.zarr"
    for i, part in enumerate(parts(columns)):
        path, table = folder / f"{i}.{end}", pa.table(part)
        if end == "parquet":
            parquet.write_table(table, path, row_group_size=64)
        elif end.startswith("csv"):
            import pandas as pd  # 40 MB, which sessions of other files need not copy

            pd.DataFrame(part).to_csv(path, index=False)
        else:
            with pa.ipc.new_file(str(path), table.schema) as file:
                file.write_table(table, max_chunksize=50)
    return folder


ENDS = "parquet", "arrow", "feather", "csv", "csv.gz", "zarr"


@pytest.fixture
def away():
    """Yield a file system behind URLs, and what its URLs start with."""
    fsspec = pytest.importorskip("fsspec", reason="fsspec, of synk[remote], is missing")
    system = fsspec.filesystem("memory")
    yield system, "memory://away/"
    if system.exists("/away"):
        system.rm("/away", recursive=True)


@pytest.mark.parametrize("end", ENDS)
def test_columns_are_those_of_the_table_by_themselves_and_side_by_side(tmp_path, end):
    source = write(tmp_path / "table", end, TABLE)
    rows = synk.files.table(source, [["b", "a"], "n", "t"], window=2)
    numbers = RNG.permutation(ROWS)
    both, n, t = rows.take(numbers)
    expected = np.stack([TABLE["b"].astype(float), TABLE["a"]], axis=1)[numbers]
    np.testing.assert_allclose(both, expected, rtol=0, atol=1e-6 if "csv" in end else 0)
    assert both.dtype == np.float64
    np.testing.assert_array_equal(n, TABLE["n"][numbers])
    np.testing.assert_array_equal(t, TABLE["t"][numbers])
    given = synk.files.table(source, ["n", "b"], dtypes=["int32", "float32"])
    assert [each.dtype.name for each in given.take([0])] == ["int32", "float32"]
    assert len(rows) == ROWS
    assert "pieces" in repr(rows)


def test_an_epoch_has_every_row_once_and_training_is_that_on_arrays(
    tmp_path, two_ranks, away
):
    source = write(tmp_path / "table", "parquet", TABLE)
    system, base = away
    system.put(str(source), "/away/t", recursive=True)
    x, y = pt.dmatrix("x"), pt.lvector("y")
    columns, kept = ([["a", "b"], "n"], {"cache": tmp_path / "kept"})
    losses = []
    for data in (
        [synk.files.table(source, columns, dtypes=["float64", "int64"])],
        [synk.files.table(base + "t", columns, dtypes=["float64", "int64"], **kept)],
        [np.stack([TABLE["a"], TABLE["b"]], axis=1), TABLE["n"].astype("int64")],
    ):
        w = pytensor.shared(np.zeros(2), "w")
        loss = ((x @ w - y) ** 2).mean()
        updates = {w: w - 0.1 * pt.grad(loss, w)}
        step = synk.function([x, y], loss, updates=updates, mode=PY)
        trainer = synk.Trainer(step, [w], shuffle=False)
        history = trainer.fit(*data, batch_size=64, epochs=2, progress=False)
        losses.append(history["loss"])
    assert losses[0] == losses[1]
    np.testing.assert_allclose(losses[0], losses[2], rtol=1e-12)
    rows = synk.files.table(source, ["a"], window=3)
    for epoch in (0, 1):
        found = [
            np.array(part.inputs[0][batch])
            for part in rows.parts(epoch, 30)
            for batch in part.batches
        ]
        assert [len(batch) for batch in found] == [30] * 16 + [20]
        shuffled = np.concatenate(found)
        assert not np.array_equal(shuffled, TABLE["a"])
        np.testing.assert_array_equal(np.sort(shuffled), np.sort(TABLE["a"]))


@pytest.mark.parametrize("end", ["parquet", "arrow"])
def test_categories_are_numbers_of_values_whatever_a_file_has_of_them(tmp_path, end):
    folder = tmp_path / "table"
    folder.mkdir()
    for i, part in enumerate(parts({"word": WORDS})):
        words = pa.array(part["word"].tolist() + [None] * (i == 1))
        table = pa.table({"word": words.dictionary_encode()})
        path = str(folder / f"{i}.{end}")
        if end == "parquet":
            parquet.write_table(table, path, row_group_size=64)
        else:
            with pa.ipc.new_file(path, table.schema) as file:
                file.write_table(table)
    rows = synk.files.table(folder, ["word"], fill=-1)
    (codes,) = rows.take(np.arange(ROWS + 1))
    assert codes.dtype == np.int32
    assert codes[CUTS[1]] == -1
    found = np.array(rows.categories["word"])[np.delete(codes, CUTS[1])]
    np.testing.assert_array_equal(found, WORDS)
    assert rows.categories["word"] == tuple(dict.fromkeys(WORDS.tolist()))


def test_what_is_missing_is_an_error_or_filled(tmp_path):
    values = [1.0, None, 3.0]
    whole, flags = [1, 2, None], [True, None, False]
    columns = {"x": values, "n": pa.array(whole, pa.int64()), "t": flags}
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet: column 'x' has 1 rows"):
        synk.files.table(tmp_path, ["x"]).take([0])
    x, n, t = synk.files.table(tmp_path, ["x", "n", "t"], fill=0).take([0, 1, 2])
    assert (x.tolist(), n.tolist(), t.tolist()) == (
        *([1.0, 0.0, 3.0], [1, 2, 0]),
        [True, False, False],
    )
    (x,) = synk.files.table(tmp_path, ["x"], fill=np.nan).take([1])
    assert np.isnan(x[0])
    for fill in (0.5, np.nan, np.inf):
        with pytest.raises(ValueError, match="column 'n' is of int64: fill="):
            synk.files.table(tmp_path, ["n"], fill=fill).take([0])


def test_lists_of_one_length_are_vectors(tmp_path):
    vectors = RNG.normal(size=(9, 4)).astype("float32")
    flat = pa.array(vectors.ravel())
    table = pa.table({"v": pa.FixedSizeListArray.from_arrays(flat, 4), "y": range(9)})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=4)
    v, y = synk.files.table(tmp_path / "a.parquet", ["v", "y"]).take([8, 0, 5])
    np.testing.assert_array_equal(v, vectors[[8, 0, 5]])
    assert y.tolist() == [8, 0, 5]
    with pytest.raises(ValueError, match="inputs by themselves"):
        synk.files.table(tmp_path, [["v", "y"]])


def test_what_is_no_table_of_numbers_is_named(tmp_path):
    write(tmp_path / "t", "parquet", {**TABLE, "s": WORDS})

    def refused(words, *args, kind=ValueError, **options):
        with pytest.raises(kind, match=words):
            synk.files.table(*args, **options)

    refused("column 's' is of .*string", tmp_path / "t", ["s"])
    refused("no column 'z': it has a, b, n, t, s", tmp_path / "t", ["z"])
    refused(r"columns is a list: \['a'\]", tmp_path / "t", "a", kind=TypeError)
    refused("name one", tmp_path / "t", [])
    refused("no files that end in .*parquet", tmp_path, ["a"])
    refused("does not end in", tmp_path / "x.npy", ["a"])
    refused("x.parquet", tmp_path / "x.parquet", ["a"], kind=FileNotFoundError)
    (tmp_path / "t" / "9.parquet").write_bytes(b"PAR1 and no more")
    refused("9.parquet", tmp_path / "t", ["a"])
    with pytest.raises(ValueError, match="does not end in"):
        synk.files.arrays(tmp_path / "t" / "0.parquet")
    changed = synk.files.table(tmp_path / "t" / "0.parquet", ["a"])
    parquet.write_table(pa.table({"a": [1.0]}), tmp_path / "t" / "0.parquet")
    with pytest.raises(ValueError, match="it has changed"):
        changed.take([0])


@pytest.mark.parametrize("end", ENDS)
def test_what_is_behind_a_url_is_fetched_once_and_then_is_in_the_cache(
    tmp_path, away, end
):
    source = write(tmp_path / "table", end, TABLE)
    system, base = away
    system.put(str(source), f"/away/{source.name}", recursive=True)
    arguments, cache = (
        (base + source.name, [["b", "a"], "n"]),
        tmp_path / "new" / "kept",
    )
    every = RNG.permutation(ROWS)
    expected = synk.files.table(source, [["b", "a"], "n"]).take(every)

    def assert_right(rows):
        for found, of_input in zip(rows.take(every), expected, strict=True):
            np.testing.assert_array_equal(found, of_input, strict=True)

    rows, again = (synk.files.table(*arguments, cache=cache) for _ in range(2))
    for each in (synk.files.table(*arguments), rows, pickle.loads(pickle.dumps(rows))):
        assert_right(each)
    system.rm(f"/away/{source.name}", recursive=True)
    for each in (rows, again):
        assert_right(each)
    with pytest.raises((FileNotFoundError, ValueError), match="table"):
        synk.files.table(*arguments, cache=cache)


def test_a_cache_holds_no_more_than_it_may_and_what_is_in_use_stays(tmp_path):
    source = write(tmp_path / "table", "parquet", TABLE)
    cache = tmp_path / "kept"

    def there():
        return {f.name: f.stat().st_size for f in cache.iterdir()}

    def read(rows):
        for number in range(ROWS):
            (found,) = rows.take([number])
            assert found[0] == TABLE[rows.name][number]
            assert sum(there().values()) <= 2000

    def table(name):
        rows = synk.files.table(source, [name], cache=cache, cache_bytes=2000)
        rows.name = name
        return rows

    a = table("a")
    read(a)
    first = there()
    assert sum(first.values()) > 1000  # not all of 500 x 8 bytes
    b = table("b")
    for rows in (a, b):  # there is no room for b
        read(rows)
        assert there() == first
    del a, rows
    gc.collect()
    read(b)
    assert not there().keys() & first.keys() - {"lock"}
    with pytest.raises(ValueError, match="cache_bytes must be at least 1, got 0"):
        synk.files.table(source, ["a"], cache=cache, cache_bytes=0)


def test_a_cache_has_a_file_as_it_was_found_and_one_that_fails_is_done_without(
    tmp_path,
):
    path, cache = tmp_path / "a.parquet", tmp_path / "kept"

    def table(values, cache):
        parquet.write_table(pa.table({"x": values}), path)
        return synk.files.table(path, ["x"], cache=cache)

    old = table([1.0, 2.0], cache)
    assert old.take([1])[0] == [2.0]
    new = table([3.0, 4.0, 5.0], cache)
    assert (old.take([1])[0], new.take([2])[0]) == ([2.0], [5.0])
    for file in cache.glob("*-rows"):
        kept = file.read_bytes()
        file.write_bytes(kept[:-8] + bytes(8))  # as after a failure of power
    new = synk.files.table(path, ["x"], cache=cache)
    assert new.take([2])[0] == [5.0]
    for file in cache.iterdir():
        file.write_bytes(b"no array")
    assert new.take([0])[0] == [3.0]
    assert new.take([1])[0] == [4.0]
    with pytest.raises(ValueError, match="has changed"):
        old.take([0])
    with pytest.warns(RuntimeWarning, match="nothing more is kept in the cache"):
        assert table([6.0], path / "no folder").take([0])[0] == [6.0]
