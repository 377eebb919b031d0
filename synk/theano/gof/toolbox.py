"""`theano.gof.toolbox`: features of a graph."""

from ..forwarding import forward

__getattr__, __dir__ = forward(__name__, "pytensor.graph.features")
