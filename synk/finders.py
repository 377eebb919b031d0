"""Import finders for ``theano`` and ``synkhronos``, if these are not installed.

After ``import synk``, ``import theano`` finds `synk.theano`, and ``import synkhronos``
finds `synk.synkhronos`. Two finders do this, and never hide an installed package:

* `_Fallback`, at the end of ``sys.meta_path``, knows these two names only. Python asks
  it when all other finders have failed.
* `_Submodules` is put in front once such a name is synk's package. Otherwise Python
  would find ``theano.tensor`` by the package's path, as a second module beside
  `synk.theano.tensor`, and classes and functions would exist twice.

Neither package is imported before ``import theano`` or ``import synkhronos``.
`_Lender`, also at the end, provides a `pkg_resources` for Lasagne 0.1.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import warnings
from importlib import metadata
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NAMES = {"theano": "synk.theano", "synkhronos": "synk.synkhronos"}
"""The names that are found, and synk's package for each."""


def register() -> None:
    """Register the finders, unless ``SYNK_THEANO=0``; the second time has no effect."""
    if os.environ.get("SYNK_THEANO") == "0":
        return
    if not any(isinstance(finder, _Fallback) for finder in sys.meta_path):
        sys.meta_path += [_Fallback(), _Lender()]
        # An installed `pkg_resources` warns, and Lasagne's users cannot change that.
        warnings.filterwarnings(
            "ignore", "pkg_resources is deprecated", module=r"lasagne\Z"
        )


class _Alias(Loader):
    """Loads ``theano.x`` as the module object of `synk.theano.x`."""

    def __init__(self, spec: ModuleSpec) -> None:
        self._spec = spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return importlib.import_module(self._spec.name)

    def exec_module(self, module: ModuleType) -> None:
        # The import system has replaced the module's own spec by the alias's, but
        # `importlib.reload` and `inspect` need its own.
        module.__spec__ = self._spec
        _share_loaded()


def _alias_spec(fullname: str) -> ModuleSpec | None:
    """Return a spec that loads `fullname` as synk's module; None if there is none."""
    top, dot, rest = fullname.partition(".")
    try:
        ours = importlib.util.find_spec(NAMES[top] + dot + rest)
    except ModuleNotFoundError:
        return None
    if ours is None:
        return None
    spec = ModuleSpec(fullname, _Alias(ours), origin=ours.origin)
    spec.submodule_search_locations = ours.submodule_search_locations
    return spec


def _share_loaded() -> None:
    """Enter every loaded module of synk's packages under its alias, too."""
    # All of Theano's modules are made with their package. Importing one again by its
    # alias would make it an attribute of the package, in place of a function of its
    # name (``theano.tensor.var``).
    for theirs, ours in NAMES.items():
        package = sys.modules.get(theirs)
        if package is None or package is not sys.modules.get(ours):
            continue  # not imported, or an installed package
        for name, module in list(sys.modules.items()):
            if name.startswith(ours + "."):
                sys.modules.setdefault(theirs + name[len(ours) :], module)


class _Submodules(MetaPathFinder):
    """Finds ``theano.x`` if ``theano`` is `synk.theano`."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        top, dot, _ = fullname.partition(".")
        if not dot or top not in NAMES:
            return None
        package = sys.modules.get(top)
        if package is None or package is not sys.modules.get(NAMES[top]):
            return None
        found = _alias_spec(fullname)
        if found is None:
            raise ModuleNotFoundError(_say_missing(fullname), name=fullname)
        return found


def _say_missing(fullname: str) -> str:
    if not fullname.startswith("theano."):
        return f"No module named {fullname!r} in what synk has of Synkhronos"
    from .theano.modules import hint

    return hint(fullname)


class _Fallback(MetaPathFinder):
    """Finds ``theano`` and ``synkhronos`` if no other finder has."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname not in NAMES:
            return None
        if not any(isinstance(finder, _Submodules) for finder in sys.meta_path):
            sys.meta_path.insert(0, _Submodules())
        return _alias_spec(fullname)


# -- `pkg_resources` for Lasagne 0.1, which asks it for Lasagne's version
#
# Lasagne's ``__init__.py`` ends with::
#
#     import pkg_resources
#     __version__ = pkg_resources.get_distribution("Lasagne").version
#     del pkg_resources
#
# That module was part of setuptools until version 82, and gives a deprecation warning
# in the last versions. An installed one is never hidden. synk's is there only while
# Lasagne is being imported, as other packages test whether `pkg_resources` exists.

_NAME = "pkg_resources"


def _get_distribution(name: str) -> metadata.Distribution:
    """Return a distribution, which has a `version`, and remove the module."""
    sys.modules.pop(_NAME, None)
    return metadata.distribution(name)


class _Lender(MetaPathFinder, Loader):
    """Finds `pkg_resources` for Lasagne, if no other finder has, and fills it."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != _NAME:
            return None
        lasagne = sys.modules.get("lasagne")
        if lasagne is None or hasattr(lasagne, "__version__"):
            return None
        return ModuleSpec(_NAME, self, origin=__file__)

    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = "What Lasagne 0.1 asks of setuptools' module of this name."
        module.get_distribution = _get_distribution  # type: ignore[attr-defined]
