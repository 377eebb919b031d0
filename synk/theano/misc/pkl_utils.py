"""`theano.misc.pkl_utils`: PyTensor's."""

from ..forwarding import forward

__getattr__, __dir__ = forward(__name__, "pytensor.misc.pkl_utils")
