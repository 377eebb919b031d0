"""`theano.scan_module.scan_utils`: helpers of `scan`."""

from ..forwarding import forward

__getattr__, __dir__ = forward(
    __name__, "synk.theano.functions", "pytensor.scan.utils", "pytensor.scan"
)
