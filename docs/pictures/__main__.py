"""Draw all pictures into a folder: ``python -m pictures FOLDER``, in ``docs``."""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path

import matplotlib

matplotlib.use("svg")

from . import THEMES, names, style


def main(folder: Path) -> None:
    """Draw each picture for each theme, from data that is gathered once."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names():
        began = time.perf_counter()
        module = importlib.import_module(f".{name}", __package__)
        data = module.gather()
        for theme in THEMES:
            with style.of(theme):
                figure = module.draw(data)
                target = folder / f"{name}-{theme}.svg"
                figure.savefig(target, metadata={"Date": None})
        print(f"{name}: {time.perf_counter() - began:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
