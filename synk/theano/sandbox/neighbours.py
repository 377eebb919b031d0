"""`theano.sandbox.neighbours`: older place of `theano.tensor.nnet.neighbours`."""

from ..tensor.nnet.neighbours import images2neibs, neibs2images

__all__ = ["images2neibs", "neibs2images"]
