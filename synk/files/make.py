"""`synk.files.arrays`, `images` and `table`, which make `Rows` of files."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ..user_frames import entry
from .cache import Cache
from .columns import Column, ImageColumn, Source
from .places import is_url
from .rows import Rows
from .stored import Stored, damaged, files_of, stored_in
from .tables import Piece, categories_in, open_table


@entry
def arrays(
    paths: str | os.PathLike[str] | Sequence,
    names: Sequence[str] | None = None,
    *,
    labels: Any = None,
    dtypes: Sequence[Any] | None = None,
    window: int = 1,
) -> Rows:
    """Take rows of numbers that lie in many files, some in each.

    Parameters
    ----------
    paths : path-like, or sequence of these
        A folder, whose files come in the order of their names, or files. Those that end
        in ``.npy`` have one array; ``.h5``, ``.hdf5`` and ``.hkl`` (hickle) are read
        with h5py, and nothing in them is unpickled.
    names : sequence of str, optional
        Names of the datasets in each file, one for each input of the step. The name of
        a group stands for all datasets in it, sorted. By default a file has one array.
    labels : array_like or path-like, optional
        One more input: for all rows, in the order of the files.
    dtypes : sequence of dtype, optional
        The dtypes of the inputs; None stands for that of the files.
    window : int
        The number of files, next to each other in an epoch's order, whose rows are
        shuffled together. Twice as many are in memory.

    Returns
    -------
    Rows

    Raises
    ------
    ImportError
        If h5py is needed and not installed.
    FileNotFoundError
        If there is no such file.
    TypeError, ValueError
        If a file is damaged, or its rows differ from other files' in shape or dtype.

    Examples
    --------
    >>> import numpy as np, pathlib, synk, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for i in range(3):
    ...         np.save(pathlib.Path(folder, f"{i}.npy"), np.full((4, 2), i))
    ...     rows = synk.files.arrays(folder, labels=np.arange(12))
    ...     x, y = rows.take([0, 11])
    >>> x, y
    (array([[0, 0],
           [2, 2]]), array([ 0, 11]))
    """
    files = files_of(paths)
    by_column = _sources(files, names)
    kinds = _dtypes(dtypes, len(by_column) + (labels is not None))
    columns = [Column(*pair) for pair in zip(by_column, kinds, strict=False)]
    return _rows(columns, labels, kinds[-1], files, window)


@entry
def images(
    paths: str | os.PathLike[str] | Sequence,
    names: Sequence[str] | None = None,
    *,
    labels: Any = None,
    layout: str = "bc01",
    mean: Any = None,
    std: Any = None,
    crop: int | tuple[int, int] | None = None,
    mirror: bool = False,
    training: bool = True,
    dtypes: Sequence[Any] | None = None,
    window: int = 1,
) -> Rows:
    """Take images that lie in many files, some in each: parts of them, normalised.

    Parameters
    ----------
    paths : path-like, or sequence of these
        As for :func:`synk.files.arrays`.
    names : sequence of str, optional
        As for `arrays`: the images first, then the other inputs.
    labels : array_like or path-like, optional
        As for `arrays`.
    layout : str
        The axes of the images in a file: "b" is the image, "c" the channel, which may
        be missing, and "0" and "1" the line and the column. The step gets ``bc01``.
    mean : array_like or path-like, optional
        Subtracted from images: a number, one for each channel, or an image (c01).
    std : array_like or path-like, optional
        Divides the difference: as for `mean`.
    crop : int or (int, int), optional
        Lines and columns of the crop. Its place is drawn for each image in each epoch,
        all places alike.
    mirror : bool
        Whether each crop is mirrored, left to right, with probability one half.
    training : bool
        False crops at the centre and mirrors nothing, for validation.
    dtypes : sequence of dtype, optional
        The dtypes of the inputs; by default images are float32.
    window : int
        As for `arrays`.

    Returns
    -------
    Rows

    Raises
    ------
    ImportError
        If h5py is needed and not installed.
    FileNotFoundError
        If there is no such file.
    TypeError, ValueError
        If a file is damaged, its images differ from other files' in shape or dtype, or
        an argument does not fit them.

    Examples
    --------
    >>> import numpy as np, pathlib, synk, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     batch = np.arange(2 * 3 * 8 * 8, dtype="uint8").reshape(3, 8, 8, 2)
    ...     np.save(pathlib.Path(folder, "0.npy"), batch)
    ...     rows = synk.files.images(folder, layout="c01b", crop=5, mirror=True)
    ...     [x] = rows.take([1, 0], epoch=7)
    >>> rows
    <synk.files.Rows 2 in 1 files: float32 (3, 5, 5)>
    >>> x.shape
    (2, 3, 5, 5)
    """
    files = files_of(paths)
    by_column = _sources(files, names)
    kinds = _dtypes(dtypes, len(by_column) + (labels is not None), "float32")
    how = layout, _value(mean), _value(std), crop, mirror, training
    columns: list[Column] = [ImageColumn(by_column[0], kinds[0], *how)]
    columns += [Column(*pair) for pair in zip(by_column[1:], kinds[1:], strict=False)]
    return _rows(columns, labels, kinds[-1], files, window)


@entry
def table(
    source: str | os.PathLike[str] | Sequence,
    columns: Sequence[str | Sequence[str]],
    *,
    fill: float | None = None,
    dtypes: Sequence[Any] | None = None,
    window: int = 1,
    cache: str | os.PathLike[str] | None = None,
    cache_bytes: int = 10 * 2**30,
) -> Rows:
    """Take columns of a table that lies in one file, or in many.

    Parameters
    ----------
    source : path-like or URL, or sequence of these
        A file, a folder, whose files come in the order of their names, or files. Those
        that end in ``.parquet``, ``.feather``, ``.arrow`` and ``.csv`` (``.csv.gz``,
        ``.csv.bz2``, ``.csv.zst``) are read by pyarrow, and ``.zarr``, a folder of
        arrays of the same number of rows, by zarr. URLs are those that fsspec knows,
        such as ``https://`` and ``s3://``; only the parts of a file that are needed are
        read.
    columns : sequence of (str or list of str)
        For each input of the step a column, or a list of columns: then a row is a
        vector of their values. Numbers and booleans are taken as they are, lists of one
        length as vectors, and categories (dictionaries of Arrow) as int32, the index of
        a value in ``rows.categories[column]``, which has values in the order of their
        first occurrence in the table.
    fill : float, optional
        Replaces missing values. By default a missing value is an error.
    dtypes : sequence of dtype, optional
        The dtypes of the inputs; None stands for that of the table.
    window : int
        The number of pieces, next to each other in an epoch's order, whose rows are
        shuffled together. Twice as many are in memory. A piece is a row group of
        Parquet, a record batch of Arrow, the rows of a chunk (or shard) of Zarr, or a
        file of CSV.
    cache : path-like, optional
        A folder on a local disk, made if need be, where pieces are kept once they were
        read, as they are in memory: later they are neither fetched nor decompressed nor
        parsed. Epochs and scripts share the folder. On several machines each has a
        folder of its own.
    cache_bytes : int
        The most bytes of the folder. If it is full, pieces that no Rows of this script
        use are removed, the least recently used first. If the table is larger than the
        folder, each epoch finds the same part of it there.

    Returns
    -------
    Rows

    Raises
    ------
    ImportError
        If pyarrow, zarr or fsspec is needed and not installed.
    FileNotFoundError
        If there is no such file.
    TypeError, ValueError
        If a file is damaged, a column does not exist or has no numbers, or files differ
        in their columns. When rows are read, if a value is missing.

    Examples
    --------
    >>> import numpy as np, pandas as pd, pathlib, synk, tempfile
    >>> frame = pd.DataFrame({"x": [1.0, 2, 3], "y": [0, 1, 0], "z": [5.0, 6, 7]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     frame.to_csv(pathlib.Path(folder, "part-0.csv"), index=False)
    ...     rows = synk.files.table(folder, [["x", "z"], "y"])
    ...     x, y = rows.take([0, 2])
    >>> x, y
    (array([[1., 5.],
           [3., 7.]]), array([0, 0]))
    """
    if isinstance(columns, str):
        raise TypeError(f"columns is a list: [{columns!r}]")
    inputs = [(c,) if isinstance(c, str) else tuple(c) for c in columns]
    if not inputs or not all(inputs):
        raise ValueError("columns: name one for each input, at least")
    files = files_of(source, of_tables=True)
    names = list(dict.fromkeys(name for of_input in inputs for name in of_input))
    kept = None if cache is None else Cache(cache, operator.index(cache_bytes))

    def scan(file: str) -> tuple[dict[str, list], list[Stored]]:
        """Return a file's categories, and its pieces of each input."""
        with damaged(file):
            opened = open_table(file)
            values = categories_in(opened, names)
        pieces = [
            Piece(number, of_input, isinstance(asked, str), fill)
            for of_input, asked in zip(inputs, columns, strict=True)
            for number in range(len(opened.rows))
        ]
        return values, stored_in(file, pieces)

    known: dict[str, dict[Any, None]] = {}
    by_column: list[list[Stored]] = [[] for _ in inputs]
    pieces: list[str] = []
    for file, (values, stored) in zip(files, _map_files(files, scan), strict=True):
        for name, of_file in values.items():
            known.setdefault(name, {}).update(dict.fromkeys(of_file))
        count = len(stored) // len(inputs)
        pieces += [file] * count
        for i, sources in enumerate(by_column):
            sources += stored[i * count : (i + 1) * count]
    categories = {name: tuple(of_name) for name, of_name in known.items()}
    kinds = _dtypes(dtypes, len(inputs))
    if not pieces:
        raise ValueError(f"{files[0]} and all other files have no rows")
    found = []
    for of_input, sources, kind in zip(inputs, by_column, kinds, strict=True):
        there = tuple((n, categories[n]) for n in of_input if n in categories)
        for i, piece in enumerate(sources):
            name = piece.name._replace(categories=there)
            sources[i] = piece._replace(name=name, cache=kept)
        found.append(Column(sources, kind))
    rows = _rows(found, None, None, pieces, window)
    rows.categories, rows.kind = categories, "pieces"
    return rows


def _map_files(files: list[str], scan: Callable[[str], Any]) -> Iterator[Any]:
    """Yield ``scan(file)`` for each file; with URLs, in up to 16 threads."""
    if not any(map(is_url, files)):
        yield from map(scan, files)
        return
    with ThreadPoolExecutor(min(16, len(files))) as threads:
        yield from threads.map(scan, files)


def _sources(files: list[str], names: Sequence[str] | None) -> list[list[Source]]:
    """Return for each input a list of sources, one for each file."""
    if isinstance(names, str):
        raise TypeError(f"names is a list: [{names!r}]")
    found: list[list[Stored]] = []
    for file in files:
        found.append(stored_in(file, names))
        if len(found[-1]) != len(found[0]):
            raise ValueError(
                f"{file}: it has {len(found[-1])} arrays, and {files[0]} has"
                f" {len(found[0])}"
            )
    return [list(column) for column in zip(*found, strict=True)]


def _dtypes(
    dtypes: Sequence[Any] | None, inputs: int, of_first: str | None = None
) -> list[Any]:
    if dtypes is None:
        return [of_first, *[None] * (inputs - 1)]
    if isinstance(dtypes, str) or len(dtypes) != inputs:
        raise ValueError(f"dtypes are of {inputs} inputs, got {dtypes!r}")
    return list(dtypes)


def _rows(
    columns: list[Column], labels: Any, dtype: Any, files: list[str], window: int
) -> Rows:
    """Return `Rows` of columns and labels, if all have as many rows in each file."""
    if operator.index(window) < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    counts = [columns[0].rows_of(f) for f in range(len(files))]
    for column in columns[1:]:
        for f, count in enumerate(counts):
            if column.rows_of(f) != count:
                raise ValueError(
                    f"{files[f]}: its arrays have {count} and {column.rows_of(f)} rows"
                )
    total = sum(counts)
    if not total:
        raise ValueError(f"{files[0]} and all other files have no rows")
    if labels is not None:
        values = np.ascontiguousarray(_value(labels))
        if len(values) != total:
            raise ValueError(f"there are {len(values)} labels for {total} rows")
        ends = np.cumsum(counts)
        columns.append(Column(np.split(values, ends[:-1]), dtype))
    return Rows(columns, len(files), window)


def _value(value: Any) -> Any:
    """Return `value`, or if it is a path, the array in that file."""
    if not isinstance(value, (str, os.PathLike)):
        return value
    [path] = files_of([value])
    [stored] = stored_in(path, None)
    [array] = stored.arrays()
    return np.array(array)
