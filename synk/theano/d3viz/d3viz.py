"""`theano.d3viz.d3viz`: PyTensor's."""

from ..forwarding import forward

__getattr__, __dir__ = forward(__name__, "pytensor.d3viz.d3viz", "pytensor.d3viz")
