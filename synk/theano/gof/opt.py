"""`theano.gof.opt`: rewrites."""

from ..forwarding import forward

__getattr__, __dir__ = forward(
    __name__, "synk.theano.gof", "pytensor.graph.rewriting.basic"
)
