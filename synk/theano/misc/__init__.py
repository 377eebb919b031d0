"""`theano.misc`."""

from ..forwarding import forward

__getattr__, __dir__ = forward(__name__)
