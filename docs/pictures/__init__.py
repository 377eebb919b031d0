"""The pictures of these pages, each drawn by a module named ``of_...``."""

from pathlib import Path

THEMES = ("light", "dark")


def names() -> list[str]:
    """Return the modules that draw."""
    return sorted(path.stem for path in Path(__file__).parent.glob("of_*.py"))
