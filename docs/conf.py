"""Sphinx configuration; build with ``python -m sphinx -W -n docs docs/_build/html``."""

import re
import sys
from pathlib import Path

from docutils import nodes

import synk

sys.path.insert(0, str(Path(__file__).parent))  # for the pictures

project = "synk"
author = "the synk developers"
copyright = "2026, the synk developers"
release = version = synk.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "pictures.directive",
    "sphinx_design",
]
exclude_patterns = ["_build"]
# In docstrings `name` is a parameter or an expression, not always a reference.
default_role = "literal"
highlight_language = "none"  # of blocks that are drawings; doctests are Python
autodoc_mock_imports = ["keras", "torch"]  # synk.keras is for Keras 3
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autosummary_generate = False
numpydoc_show_class_members = False

html_theme = "furo"
pygments_style = "default"  # diffs in red and green
pygments_dark_style = "monokai"
html_title = f"synk {release}"
html_copy_source = False


def name_files_of_diffs(app, doctree):
    """Have diffs name their files as the page does, not by the builder's paths."""
    for block in doctree.findall(nodes.literal_block):
        if block.get("language") == "udiff":
            text = re.sub(r"^(---|\+\+\+) .*/", r"\1 ", block.astext(), flags=re.M)
            block.rawsource = text
            block[:] = [nodes.Text(text)]


def setup(app):
    """Register what is above; Sphinx calls it."""
    app.connect("doctree-read", name_files_of_diffs)
