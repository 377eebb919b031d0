"""`theano.sandbox.gpuarray`: older place of `theano.gpuarray`, not activated either."""

from ...forwarding import forward
from ...gpuarray import pygpu, pygpu_activated, use

__all__ = ["pygpu", "pygpu_activated", "use"]

__getattr__, __dir__ = forward(__name__)
