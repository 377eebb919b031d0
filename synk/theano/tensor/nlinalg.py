"""`theano.tensor.nlinalg`: linear algebra of NumPy."""

from pytensor.tensor import diag, extract_diag, trace
from pytensor.tensor import diag as alloc_diag

from ..forwarding import forward

__all__ = ["alloc_diag", "diag", "extract_diag", "trace"]

__getattr__, __dir__ = forward(
    __name__, "pytensor.tensor.linalg", "pytensor.tensor.nlinalg"
)
