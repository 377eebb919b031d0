"""Arrays given in many ways, tables of pandas, and folders of images.

What makes the latter is imported when it is used.

Each worker of the tests imports every file of tests, and forks all its sessions with
what that has brought into memory.
"""

from pathlib import Path

import numpy as np

import synk


def frame(values=None, **columns):
    """Return a table of values, or of named columns."""
    import pandas

    return pandas.DataFrame(columns if values is None else values)


WAYS = {
    "C": np.ascontiguousarray,
    "Fortran": np.asfortranarray,
    "strided": lambda a: np.repeat(np.repeat(a, 2, axis=0), 3, axis=1)[::2, ::3],
    "reversed": lambda a: a[::-1].copy()[::-1],
    "other byte order": lambda a: a.astype(a.dtype.newbyteorder()),
    "narrower": lambda a: a.astype("float32"),
    "integers": lambda a: a.astype("int16"),
    "read-only": lambda a: np.broadcast_to(a, a.shape),
    "list": lambda a: a.tolist(),
    "list of ints": lambda a: a.astype(int).tolist(),
    "tuple of arrays": tuple,
    "pandas": frame,
    "Data": synk.data,
}
"""In what ways a table of small whole numbers, of float64, may be given."""


def series(values, **options):
    import pandas

    return pandas.Series(values, **options)


def nullable(*values, dtype="Int64"):
    """Return an array of a dtype of pandas', in which some (None) may be missing."""
    import pandas

    return pandas.array(list(values), dtype=dtype)


def make_folder(folder: Path, height: int, width: int) -> None:
    """Make 11 red and 11 blue images, of which 1 each is for validation."""
    from PIL import Image

    random = np.random.default_rng(0)
    for channel, name in (0, "red"), (2, "blue"):
        (folder / name).mkdir(parents=True)
        for i in range(11):
            pixels = random.integers(0, 100, (height, width, 3), dtype="uint8")
            pixels[..., channel] += 100
            Image.fromarray(pixels).save(folder / name / f"{i:02}.png")
