"""`theano.gof.utils`: helpers of the graph."""

from ..forwarding import forward

__getattr__, __dir__ = forward(__name__, "pytensor.graph.utils")
