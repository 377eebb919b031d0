"""A Sphinx extension that has the pictures drawn, and shows them.

``.. picture:: NAME`` shows what the module NAME here draws, in the colours of the
page's theme, light or dark. All are drawn once before the pages are read, by ``python
-m pictures FOLDER`` in a process of its own: some fork ranks, measure and train. They
are drawn anew when one of these files, or what they read, is newer than they are.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from . import THEMES, names

FOLDER = "_build/pictures"
"""From the folder of the pages."""

READ = ("performance.rst", "engines.inc")
"""Pages with figures that are drawn."""

LIMIT = 300
"""Seconds that drawing may take; some 15 are usual."""


class Picture(SphinxDirective):
    """A picture, with its text for those who do not see it, and a caption."""

    required_arguments = 1
    option_spec: ClassVar = {"alt": directives.unchanged_required}
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return a figure with an image for each theme, of which the page shows one."""
        if "alt" not in self.options:
            raise self.error("a picture needs an :alt: text")
        figure, name = nodes.figure(), self.arguments[0]
        folder = FOLDER if name in names() else "start"  # of a tutorial: tutorials.py
        for theme in THEMES:
            uri = f"/{folder}/{name}-{theme}.svg"
            alt = " ".join(self.options["alt"].split())
            figure += nodes.image(uri=uri, alt=alt, classes=[f"only-{theme}"])
        if self.content:
            paragraph, *_ = self.parse_content_to_nodes()
            figure += nodes.caption("", "", *paragraph.children)
        return [figure]


def draw_all(app) -> None:
    """Draw what is missing or older than its sources."""
    folder, here = Path(app.srcdir, FOLDER), Path(__file__).parent
    sources = [*here.glob("*.py"), *(Path(app.srcdir, name) for name in READ)]
    expected = [folder / f"{name}-{theme}.svg" for name in names() for theme in THEMES]
    newest = max(path.stat().st_mtime for path in sources)
    if all(path.exists() and path.stat().st_mtime > newest for path in expected):
        return
    command = [sys.executable, "-m", __package__, str(folder)]
    try:
        subprocess.run(command, cwd=app.srcdir, check=True, timeout=LIMIT)
    except subprocess.SubprocessError as error:
        raise ExtensionError(f"the pictures could not be drawn: {error}") from error


def setup(app) -> dict[str, bool]:
    """Register the directive; Sphinx calls it."""
    app.add_directive("picture", Picture)
    app.connect("builder-inited", draw_all)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
