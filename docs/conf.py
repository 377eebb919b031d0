"""Sphinx configuration; build with ``python -m sphinx -W -n docs docs/_build/html``."""

import synk

project = "synk"
author = "the synk developers"
copyright = "2026, the synk developers"
release = version = synk.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc"]
exclude_patterns = ["_build"]
# In docstrings `name` is a parameter or an expression, not always a reference.
default_role = "literal"
highlight_language = "none"  # of blocks that are drawings; doctests are Python
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autosummary_generate = False
numpydoc_show_class_members = False

html_theme = "furo"
html_title = f"synk {release}"
html_copy_source = False
