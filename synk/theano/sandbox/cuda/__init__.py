"""`theano.sandbox.cuda`: Theano's first GPU backend; there, and not activated.

Its modules (``theano.sandbox.cuda.dnn``) cannot be imported.
"""

from ...forwarding import forward
from ...gpuarray import use

__all__ = ["cuda_available", "cuda_enabled", "use"]

cuda_available = False
"""Whether CUDA could be used through this package: never."""

cuda_enabled = False
"""Whether graphs run on a GPU through this package: never."""

__getattr__, __dir__ = forward(__name__)
