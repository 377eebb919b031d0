"""`theano.d3viz.formatting`: PyTensor's."""

from ..forwarding import forward

__getattr__, __dir__ = forward(__name__, "pytensor.d3viz.formatting", "pytensor.d3viz")
