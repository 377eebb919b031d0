"""Tables of pandas, and folders of images; what makes them is imported when it is used.

Each worker of the tests imports every file of tests, and forks all its sessions with
what that has brought into memory.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np


def frame(values=None, **columns):
    """Return a table of values, or of named columns."""
    import pandas

    return pandas.DataFrame(columns if values is None else values)


def series(values, **options):
    """Return a column."""
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
    for channel, name in enumerate(["red", "blue"]):
        (folder / name).mkdir(parents=True)
        for i in range(11):
            pixels = random.integers(0, 100, (height, width, 3), dtype="uint8")
            pixels[..., channel] += 100
            Image.fromarray(pixels).save(folder / name / f"{i:02}.png")
