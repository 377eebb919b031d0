"""Tables in files: Parquet, Arrow and CSV by pyarrow, Zarr by zarr.

A file is read piece by piece: a row group of Parquet, a record batch of Arrow, the rows
of a chunk (or a shard) of Zarr; a file of CSV is one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from . import places


class Piece(NamedTuple):
    """Some rows of some columns of a table; the `name` of a `Stored`."""

    number: int  # of the piece in its file
    columns: tuple[str, ...]
    is_vector: bool
    """Whether a row is the value of the only column, or a vector of all columns'."""
    fill: float | None = None  # replaces missing values
    categories: tuple[tuple[str, tuple], ...] = ()
    """By column of categories: its values, in the order of their numbers."""


class Opened(NamedTuple):
    """An open table: the rows of each piece, the kinds of columns, and a reader.

    ``kinds`` has for each column the dtype and shape of a row, None for categories, or
    the name of a type that is not a number. ``read(number, columns)`` returns an array
    for each column, masked if values are missing, or for categories a pair of codes and
    values.
    """

    rows: list[int]
    kinds: dict[str, Any]
    read: Callable[[int, Sequence[str]], list[Any]]


def find(path: str, names: Sequence[Any] | None) -> list[tuple]:
    """Return for each `Piece` in `names` the fields of `Stored` from `name` on."""
    if names is None or not all(isinstance(name, Piece) for name in names):
        raise ValueError("it is a table: see synk.files.table")
    opened, found = open_table(path), []
    for piece in names:
        kinds = [_kind(opened, name) for name in piece.columns]
        shape: tuple[int, ...] = (opened.rows[piece.number],)
        if piece.is_vector:
            dtype, of_row = kinds[0]
            shape += of_row
        else:
            if any(of_row for _, of_row in kinds):
                raise ValueError(
                    "columns of several numbers each are inputs by themselves"
                )
            dtype = np.result_type(*(dtype for dtype, _ in kinds))
            shape += (len(kinds),)
        found.append((piece, shape, dtype, None))
    return found


def _kind(opened: Opened, name: str) -> tuple[np.dtype, tuple[int, ...]]:
    if name not in opened.kinds:
        raise ValueError(f"no column {name!r}: it has {', '.join(opened.kinds)}")
    kind = opened.kinds[name]
    if isinstance(kind, str):
        raise ValueError(f"column {name!r} is of {kind}, and not of numbers")
    return (np.dtype(np.int32), ()) if kind is None else kind


def read(path: str, piece: Piece) -> list[np.ndarray]:
    """Return an array of a piece's rows for each of its columns."""
    categories = dict(piece.categories)
    arrays = []
    values = open_table(path).read(piece.number, piece.columns)
    for name, value in zip(piece.columns, values, strict=True):
        if isinstance(value, tuple):
            codes, own = value
            value = _coded(codes, own, categories[name])
        arrays.append(_whole(value, name, piece.fill))
    return arrays


def _whole(array: Any, name: str, fill: float | None) -> np.ndarray:
    """Return an array with missing values filled; ValueError if `fill` is None."""
    if not np.ma.isMaskedArray(array):
        return array
    if not np.ma.is_masked(array):
        return array.data
    if fill is None:
        raise ValueError(
            f"column {name!r} has {int(array.mask.sum())} rows in which it is missing:"
            " say by fill= what to put there"
        )
    if array.dtype.kind in "biu" and fill % 1 != 0:  # NaN and infinity, too
        raise ValueError(f"column {name!r} is of {array.dtype}: fill={fill} is no int")
    return array.filled(fill)


def _coded(codes: Any, values: Sequence[Any], categories: Sequence[Any]) -> Any:
    """Return `codes`, which index a piece's `values`, as indices in `categories`."""
    numbers = {value: i for i, value in enumerate(categories)}
    table = np.array([numbers[value] for value in values], np.int32)
    found = np.ma.masked_all(codes.shape, np.int32)
    there = ~np.ma.getmaskarray(codes)
    found[there] = table[np.ma.getdata(codes)[there]]
    return found


def categories_in(opened: Opened, names: Sequence[str]) -> dict[str, list]:
    """Return all pieces' values of the columns of categories, by column."""
    coded = [name for name in names if opened.kinds.get(name, "") is None]
    found: dict[str, list] = {name: [] for name in coded}
    for number in range(len(opened.rows)) if coded else ():
        for name, (_, values) in zip(coded, opened.read(number, coded), strict=True):
            found[name] += values
    return found


def open_table(path: str) -> Opened:
    """Open a table; the last 64 that were opened are kept, unless they have changed."""
    return _opened(path, places.stamp(path))


@lru_cache(maxsize=64)
def _opened(path: str, stamp: tuple[int, int]) -> Opened:
    end = places.ending(path, _OPENERS)
    assert end is not None
    return _OPENERS[end](path)


# -- by pyarrow


def _arrow(path: str) -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError(
            f"{path}: tables need the package pyarrow: pip install 'synk[tables]'"
        ) from error
    return pyarrow


def _kinds(schema: Any) -> dict[str, Any]:
    """Return the kinds of the columns of a schema of Arrow."""
    from pyarrow import types

    found: dict[str, Any] = {}
    for field in schema:
        kind, shape = field.type, tuple[int, ...]()
        if types.is_fixed_size_list(kind):
            kind, shape = kind.value_type, (kind.list_size,)
        if types.is_dictionary(kind) and not shape:
            found[field.name] = None
        elif (
            types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)
        ):
            found[field.name] = np.dtype(kind.to_pandas_dtype()), shape
        else:
            found[field.name] = str(field.type)
    return found


def _array(column: Any) -> Any:
    """Return a column of Arrow as an array, or codes with their values."""
    from pyarrow import types

    if hasattr(column, "chunks"):  # mostly one; joining would release Python's lock
        if column.num_chunks != 1:
            if types.is_dictionary(column.type):
                column = column.unify_dictionaries()
            column = column.combine_chunks()
        if hasattr(column, "chunks"):  # an older pyarrow has one left
            column = column.chunk(0)
    if types.is_dictionary(column.type):
        return _masked(column.indices), column.dictionary.to_pylist()
    if types.is_fixed_size_list(column.type):
        width = column.type.list_size
        if column.null_count:
            raise ValueError("lists are missing in a column of lists")
        return _masked(column.flatten()).reshape(-1, width)
    return _masked(column)


def _masked(array: Any) -> Any:
    if not array.null_count:
        return array.to_numpy(zero_copy_only=False)
    mask = array.is_null().to_numpy(zero_copy_only=False)
    zero = False if array.type.to_pandas_dtype() is np.bool_ else 0
    return np.ma.array(array.fill_null(zero).to_numpy(zero_copy_only=False), mask=mask)


def _open_parquet(path: str) -> Opened:
    _arrow(path)
    from pyarrow import parquet

    file = parquet.ParquetFile(places.opened(path), pre_buffer=places.is_url(path))
    groups = file.metadata
    rows = [groups.row_group(i).num_rows for i in range(file.num_row_groups)]

    def read(number: int, columns: Sequence[str]) -> list[Any]:
        table = file.read_row_group(number, list(columns))
        return [_array(table.column(name)) for name in columns]

    return Opened(rows, _kinds(file.schema_arrow), read)


def _open_arrow(path: str) -> Opened:
    arrow = _arrow(path)
    source = places.opened(path) if places.is_url(path) else arrow.memory_map(path)
    file = arrow.ipc.open_file(source)
    rows = [file.get_batch(i).num_rows for i in range(file.num_record_batches)]

    def read(number: int, columns: Sequence[str]) -> list[Any]:
        batch = file.get_batch(number)
        return [_array(batch.column(batch.schema.get_field_index(n))) for n in columns]

    return Opened(rows, _kinds(file.schema), read)


def _open_csv(path: str) -> Opened:
    arrow = _arrow(path)
    from pyarrow import csv

    end = places.ending(path, _COMPRESSED)
    compression = None if end is None else _COMPRESSED[end]

    def opened() -> Any:
        source = places.opened(path, is_read_once=True)
        return arrow.input_stream(source, compression=compression)

    with csv.open_csv(opened()) as blocks:
        schema = blocks.schema
        rows = sum(block.num_rows for block in blocks)

    def read(number: int, columns: Sequence[str]) -> list[Any]:
        options = csv.ConvertOptions(
            include_columns=list(columns),
            column_types=arrow.schema([schema.field(name) for name in columns]),
        )
        table = csv.read_csv(opened(), convert_options=options)
        return [_array(table.column(name)) for name in columns]

    return Opened([rows], _kinds(schema), read)


# -- by zarr


def _open_zarr(path: str) -> Opened:
    try:
        import zarr
    except ImportError as error:
        raise ImportError(f"{path}: it needs the package zarr") from error
    arrays = dict(zarr.open_group(path, mode="r").arrays())
    if not arrays:
        raise ValueError("it has no arrays")
    lengths = {array.shape[0] for array in arrays.values()}
    if len(lengths) > 1:
        raise ValueError(
            f"its arrays have {sorted(lengths)} rows: all must have as many"
        )
    (total,) = lengths
    step = max((a.shards or a.chunks)[0] for a in arrays.values())
    ends = [*range(0, total, step), total]

    def read(number: int, columns: Sequence[str]) -> list[Any]:
        rows = slice(ends[number], ends[number + 1])
        return [np.asarray(arrays[name][rows]) for name in columns]

    kinds = {name: (a.dtype, tuple(a.shape[1:])) for name, a in arrays.items()}
    return Opened([b - a for a, b in pairwise(ends)], kinds, read)


_COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}

_OPENERS: dict[str, Callable[[str], Opened]] = {
    ".arrow": _open_arrow,
    ".csv": _open_csv,
    **{".csv" + end: _open_csv for end in _COMPRESSED},
    ".feather": _open_arrow,
    ".parquet": _open_parquet,
    ".zarr": _open_zarr,
}

SUFFIXES = tuple(_OPENERS)
"""The ends of tables' file names."""
