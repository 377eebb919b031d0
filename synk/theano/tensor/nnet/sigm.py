"""`theano.tensor.nnet.sigm`: the sigmoids."""

from .nnet import hard_sigmoid, sigmoid, softplus, ultra_fast_sigmoid

__all__ = ["hard_sigmoid", "sigmoid", "softplus", "ultra_fast_sigmoid"]
