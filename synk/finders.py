"""Names that `import` finds when synk has been imported, and nobody else has them.

``import theano`` finds `synk.theano` where Theano itself is not installed, and in the
same way ``import synkhronos`` finds `synk.synkhronos`. Two finders, so that a real
package is never hidden:

* `_Fallback` stands at the end of ``sys.meta_path`` and knows these two names only.
  It is asked when everything else has failed to find the package.
* `_Submodules` is put in front once such a name *is* a package of ours. The package's
  own path would otherwise find ``theano.tensor`` as a second module beside
  `synk.theano.tensor`, and classes and functions would exist twice.

Nothing of either package is imported before ``import theano`` or ``import synkhronos``.
`_Lender` stands at the end, too, and lends Lasagne 0.1 a `pkg_resources`.
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
"""The name of a package -> our package that answers to it."""


def register() -> None:
    """Register the finders, unless ``SYNK_THEANO=0`` or they are there already."""
    if os.environ.get("SYNK_THEANO") == "0":
        return
    if not any(isinstance(finder, _Fallback) for finder in sys.meta_path):
        sys.meta_path += [_Fallback(), _Lender()]
        # Lasagne's users cannot follow the advice of a `pkg_resources` that is there.
        warnings.filterwarnings(
            "ignore", "pkg_resources is deprecated", module=r"lasagne\Z"
        )


class _Alias(Loader):
    """Loads ``theano.x`` as the very module `synk.theano.x`."""

    def __init__(self, spec: ModuleSpec) -> None:
        self._spec = spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return importlib.import_module(self._spec.name)

    def exec_module(self, module: ModuleType) -> None:
        # The import system has just written the alias's spec over the module's own,
        # by which `importlib.reload` and `inspect` go.
        module.__spec__ = self._spec
        _share_loaded()


def _alias_spec(fullname: str) -> ModuleSpec | None:
    """Return the spec that makes `fullname` the module of ours it stands for."""
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
    """Give every loaded module of ours the name that it answers to."""
    # Modules with the name of a function (``theano.tensor.var``) are loaded by their
    # package before it defines the function. Importing them a second time under their
    # other name would put the module in the function's place.
    for theirs, ours in NAMES.items():
        package = sys.modules.get(theirs)
        if package is None or package is not sys.modules.get(ours):
            continue  # not imported, or a package that is installed has the name
        for name, module in list(sys.modules.items()):
            if name.startswith(ours + "."):
                sys.modules.setdefault(theirs + name[len(ours) :], module)


class _Submodules(MetaPathFinder):
    """Finds ``theano.x`` where ``theano`` is `synk.theano`."""

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
    """Finds ``theano`` and ``synkhronos`` when nothing else did."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname not in NAMES:
            return None
        if not any(isinstance(finder, _Submodules) for finder in sys.meta_path):
            sys.meta_path.insert(0, _Submodules())
        return _alias_spec(fullname)


# -- Lasagne 0.1 asks `pkg_resources` for its own version; here it gets an answer
#
# Its ``__init__.py`` ends so::
#
#     import pkg_resources
#     __version__ = pkg_resources.get_distribution("Lasagne").version
#     del pkg_resources
#
# That module was part of setuptools until version 82, and warns of its end in the last
# versions that have it. One that is installed is never hidden, and ours is lent to
# Lasagne alone, while Lasagne is being imported: others ask for `pkg_resources` to see
# whether they may use it.

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
