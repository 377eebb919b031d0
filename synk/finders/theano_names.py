"""`import theano` finds `synk.theano` where Theano itself is not installed.

In the same way ``import synkhronos`` finds `synk.synkhronos`. Two finders, so that a
real package is never hidden:

* `_Fallback` stands at the end of ``sys.meta_path`` and knows these two names only.
  It is asked when everything else has failed to find the package.
* `_Submodules` is put in front once such a name *is* a package of ours. The package's
  own path would otherwise find ``theano.tensor`` as a second module beside
  `synk.theano.tensor`, and classes and functions would exist twice.

Nothing of either package is imported before ``import theano`` or ``import synkhronos``.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NAMES = {"theano": "synk.theano", "synkhronos": "synk.synkhronos"}
"""The name of a package -> our package that answers to it."""

GPU_PACKAGES = {
    "theano.gpuarray": "Theano's GPU backend (pygpu)",
    "theano.sandbox.cuda": "Theano's first GPU backend",
    "theano.sandbox.gpuarray": "Theano's GPU backend (pygpu)",
}
"""Packages that are there and not activated: what their modules have raises in use."""


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

    def __getattr__(self, name: str) -> Any:
        # get_code, get_source, is_package ...: what runpy and pkgutil ask for.
        return getattr(self._spec.loader, name)

    def get_code(self, fullname: str) -> Any:
        return self._spec.loader.get_code(self._spec.name)  # type: ignore[union-attr]

    def get_source(self, fullname: str) -> Any:
        return self._spec.loader.get_source(self._spec.name)  # type: ignore[union-attr]

    def get_filename(self, fullname: str) -> Any:
        return self._spec.origin

    def is_package(self, fullname: str) -> bool:
        return self._spec.submodule_search_locations is not None


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
    """Give every loaded module of ours the name that it answers to.

    Modules with the name of a function (``theano.tensor.var``) are loaded by their
    package before it defines the function. Importing them a second time under their
    other name would put the module in the function's place.
    """
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
    for name, what in GPU_PACKAGES.items():
        if fullname.startswith(name + "."):
            return (
                f"no {fullname} without {what}, which is not activated here: graphs "
                'run on GPUs through mode="JAX"'
            )
    from ..theano.forwarding import hint

    return hint(fullname)


class _Fallback(MetaPathFinder):
    """Finds ``theano`` and ``synkhronos`` when nothing else did."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname not in NAMES:
            return None
        if not any(isinstance(finder, _Submodules) for finder in sys.meta_path):
            sys.meta_path.insert(0, _Submodules())
        return _alias_spec(fullname)


def register() -> None:
    """Register the fallback, unless ``SYNK_THEANO=0`` or it is there already."""
    if os.environ.get("SYNK_THEANO") == "0":
        return
    if not any(isinstance(finder, _Fallback) for finder in sys.meta_path):
        sys.meta_path.append(_Fallback())
