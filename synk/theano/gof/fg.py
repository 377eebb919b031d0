"""`theano.gof.fg`: graphs being rewritten."""

from ..forwarding import forward

__getattr__, __dir__ = forward(__name__, "pytensor.graph.fg")
