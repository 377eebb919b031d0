"""`theano.scan_module.scan_views`: map, reduce, folds."""

from ..forwarding import forward

__getattr__, __dir__ = forward(__name__, "synk.theano.scan_module.loops")
