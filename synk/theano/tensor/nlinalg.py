"""`theano.tensor.nlinalg`: linear algebra of NumPy."""

from pytensor.tensor import diag as alloc_diag
from pytensor.tensor import extract_diag

from ..forwarding import forward
from .renamed import diag, eigh, qr, trace

__all__ = ["alloc_diag", "diag", "eigh", "extract_diag", "qr", "trace"]

__getattr__, __dir__ = forward(
    __name__, "pytensor.tensor.linalg", "pytensor.tensor.nlinalg"
)
