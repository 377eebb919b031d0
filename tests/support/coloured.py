"""Folders of small images that can be told apart: red ones and blue ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def make_folder(folder: Path, height: int, width: int) -> None:
    """Make 11 red and 11 blue images, of which 1 each is for validation."""
    random = np.random.default_rng(0)
    for channel, name in enumerate(["red", "blue"]):
        (folder / name).mkdir(parents=True)
        for i in range(11):
            pixels = random.integers(0, 100, (height, width, 3), dtype="uint8")
            pixels[..., channel] += 100
            Image.fromarray(pixels).save(folder / name / f"{i:02}.png")
