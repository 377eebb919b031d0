"""`theano.gof.type`: types."""

from ..forwarding import forward

__getattr__, __dir__ = forward(
    __name__, "synk.theano.gof", "pytensor.graph.type", "pytensor.link.c.type"
)
