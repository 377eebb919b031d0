"""`theano.sandbox.rng_mrg`: random streams under the name of their old algorithm."""

from ..tensor.streams import MRG_RandomStreams

__all__ = ["MRG_RandomStreams"]
