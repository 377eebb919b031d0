"""`theano.sandbox`: random numbers, neighbours."""

from ..forwarding import forward

__getattr__, __dir__ = forward(__name__)
