"""`theano.compile.builders`: Ops made of graphs."""

from ..forwarding import forward

__getattr__, __dir__ = forward(__name__, "pytensor.compile.builders")
