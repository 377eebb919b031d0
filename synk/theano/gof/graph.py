"""`theano.gof.graph`: variables and nodes."""

from ..forwarding import forward

__getattr__, __dir__ = forward(
    __name__, "synk.theano.gof", "pytensor.graph.basic", "pytensor.graph.traversal"
)
