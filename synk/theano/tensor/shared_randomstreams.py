"""`theano.tensor.shared_randomstreams`: random streams in shared variables."""

from .streams import RandomStreams

__all__ = ["RandomStreams"]
