"""`theano.tensor.signal`: pooling, and convolution without channels."""

from ...forwarding import forward

__getattr__, __dir__ = forward(__name__)
