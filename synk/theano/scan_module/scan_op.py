"""`theano.scan_module.scan_op`: the Op."""

from ..forwarding import forward

__getattr__, __dir__ = forward(__name__, "pytensor.scan.op")
