"""`theano.scan_module`: loops."""

from ..forwarding import forward

# The module that shares a name with a function comes before the function.
from . import scan as _scan_module  # noqa: F401
from .loops import foldl, foldr, map, reduce, scan, scan_checkpoints, until

__all__ = ["foldl", "foldr", "map", "reduce", "scan", "scan_checkpoints", "until"]

__getattr__, __dir__ = forward(__name__, "pytensor.scan", "pytensor.scan.utils")
