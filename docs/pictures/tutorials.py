"""The tutorials of the first page: their scripts, what these print, their pictures.

A page ``start/NAME.rst`` is a program: code blocks with a caption are files, or go on
with one; lines that begin with ``$`` are commands, and what follows is what they print.
``python -m pictures.tutorials NAME``, in ``docs``, runs a page and writes the picture
that its script has drawn, for both themes, beside it. The pictures are kept with the
pages: not all that tutorials need (PyMC, MPI) is there where pages are built.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

START = Path(__file__).parents[1] / "start"
LIMIT = 240
"""Seconds that a command may take."""

_BLOCK = re.compile(
    r"^\.\. code-block:: (?P<language>\w+)\n(?:   :caption: (?P<caption>.+)\n)?\n"
    r"(?P<text>(?:(?:   .*)?\n)+)",
    re.M,
)


def blocks(name: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Return a page's files by name, and its commands with what they print."""
    files: dict[str, str] = {}
    commands: list[tuple[str, str]] = []
    for block in _BLOCK.finditer((START / f"{name}.rst").read_text()):
        text = re.sub(r"^   ", "", block["text"], flags=re.M).strip("\n") + "\n"
        if block["caption"]:
            file = block["caption"].removesuffix(", continued")
            files[file] = f"{files[file]}\n{text}" if file in files else text
        elif block["language"] == "console":
            for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
                command, _, printed = part.partition("\n")
                commands.append((command, printed))
    return files, commands


def run(name: str, folder: Path) -> None:
    """Run a page in an empty folder.

    Raises
    ------
    AssertionError
        If a command fails, or prints something else than the page says.
    """
    files, commands = blocks(name)
    for file, text in files.items():
        Path(folder, file).write_text(text)
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONUNBUFFERED": "1",  # what goes to stderr and to stdout, in order
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    checker = doctest.OutputChecker()
    how = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for command, expected in commands:
        done = subprocess.run(
            command.split(),
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        assert checker.check_output(expected, done.stdout, how), (
            f"{command} printed\n{done.stdout}\nand not\n{expected}"
        )


def main(names: list[str]) -> None:
    """Write the pictures of some pages."""
    from .style import INKS

    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            run(name, Path(folder))
            (drawn,) = Path(folder).glob("*.svg")
            text = drawn.read_text()
        # Matplotlib draws text and axes in black, on a page that is white.
        text = re.sub(r"<dc:date>.*?</dc:date>", "", text)
        text = text.replace("fill: #ffffff", "fill: none")
        for theme, ink in INKS.items():
            of_theme = re.sub(r"(?<=[: ])#000000\b", ink, text)
            if theme == "dark":
                # Shapes of glyphs have no colour of their own: it is black.
                of_theme = of_theme.replace("<svg ", f'<svg fill="{ink}" ', 1)
            Path(START, f"{name}-{theme}.svg").write_text(of_theme)
        print(f"{name}: {len(text) // 1024} kB", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:] or sorted(page.stem for page in START.glob("*.rst")))
