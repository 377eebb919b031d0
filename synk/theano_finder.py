"""`import theano` finds `synk.theano` where Theano itself is not installed.

Two finders, so that a real Theano is never hidden:

* `_Fallback` stands at the end of ``sys.meta_path`` and knows the name ``theano`` only.
  It is asked when everything else has failed to find that package.
* `_Submodules` is put in front once ``theano`` *is* `synk.theano`. The package's own
  path would otherwise find ``theano.tensor`` as a second module beside
  `synk.theano.tensor`, and classes and functions would exist twice.

Nothing of `synk.theano` is imported before ``import theano``.
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

_THEIRS = "theano"
_OURS = "synk.theano"

GONE = {
    "theano.gpuarray": "Theano's GPU backend (pygpu)",
    "theano.sandbox.cuda": "Theano's first GPU backend",
    "theano.sandbox.gpuarray": "Theano's GPU backend (pygpu)",
}
"""Packages that a Theano without a GPU could not import either."""


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
    try:
        ours = importlib.util.find_spec(_OURS + fullname[len(_THEIRS) :])
    except ModuleNotFoundError:
        return None
    if ours is None:
        return None
    spec = ModuleSpec(fullname, _Alias(ours), origin=ours.origin)
    spec.submodule_search_locations = ours.submodule_search_locations
    return spec


def _share_loaded() -> None:
    """Give every loaded module of ours its name in Theano.

    Modules with the name of a function (``theano.tensor.var``) are loaded by their
    package before it defines the function. Importing them a second time under their
    other name would put the module in the function's place.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith(_OURS + "."):
            sys.modules.setdefault(_THEIRS + name[len(_OURS) :], module)


class _Submodules(MetaPathFinder):
    """Finds ``theano.x`` where ``theano`` is `synk.theano`."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if not fullname.startswith(_THEIRS + "."):
            return None
        theano = sys.modules.get(_THEIRS)
        if theano is None or theano is not sys.modules.get(_OURS):
            return None
        for name, what in GONE.items():
            if fullname == name or fullname.startswith(name + "."):
                raise ImportError(
                    f"no {fullname}, which was {what}: graphs run on GPUs through "
                    'mode="JAX"',
                    name=fullname,
                )
        found = _alias_spec(fullname)
        if found is None:
            from .theano.forwarding import hint

            raise ModuleNotFoundError(hint(fullname), name=fullname)
        return found


class _Fallback(MetaPathFinder):
    """Finds ``theano`` when nothing else did."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != _THEIRS:
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
