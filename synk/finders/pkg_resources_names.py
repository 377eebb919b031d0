"""Lasagne 0.1 asks `pkg_resources` for its own version; here it gets an answer.

Its ``__init__.py`` ends so::

    import pkg_resources
    __version__ = pkg_resources.get_distribution("Lasagne").version
    del pkg_resources

That module was part of setuptools until version 82, and warns of its end in the last
versions that have it. The finder stands at the end of ``sys.meta_path``, so that one
that is installed is never hidden, and lends its module to Lasagne alone, while Lasagne
is being imported: others ask for `pkg_resources` to see whether they may use it.
"""

from __future__ import annotations

import os
import sys
import warnings
from importlib import metadata
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_NAME = "pkg_resources"


def _get_distribution(name: str) -> metadata.Distribution:
    """Return a distribution, which has a `version`, and take the module back."""
    sys.modules.pop(_NAME, None)
    return metadata.distribution(name)


class _Lent(Loader):
    """Makes the module."""

    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = "What Lasagne 0.1 asks of setuptools' module of this name."
        module.get_distribution = _get_distribution  # type: ignore[attr-defined]


class _Lender(MetaPathFinder):
    """Finds `pkg_resources` for Lasagne, where nothing else did."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != _NAME:
            return None
        lasagne = sys.modules.get("lasagne")
        if lasagne is None or hasattr(lasagne, "__version__"):
            return None
        return ModuleSpec(_NAME, _Lent(), origin=__file__)


def register() -> None:
    """Register the finder, unless ``SYNK_THEANO=0`` or it is there already."""
    if os.environ.get("SYNK_THEANO") == "0":
        return
    if not any(isinstance(finder, _Lender) for finder in sys.meta_path):
        sys.meta_path.append(_Lender())
        # Lasagne's users cannot follow the advice of one that is installed.
        warnings.filterwarnings(
            "ignore", "pkg_resources is deprecated", module=r"lasagne\Z"
        )
