"""`theano.scan_module`: loops."""

from ..forwarding import forward
from .loops import foldl, foldr, map, reduce, scan, scan_checkpoints, until

__all__ = ["foldl", "foldr", "map", "reduce", "scan", "scan_checkpoints", "until"]

__getattr__, __dir__ = forward(__name__, "pytensor.scan", "pytensor.scan.utils")
