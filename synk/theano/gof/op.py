"""`theano.gof.op`: Ops."""

from ..forwarding import forward

__getattr__, __dir__ = forward(__name__, "pytensor.graph.op", "pytensor.link.c.op")
