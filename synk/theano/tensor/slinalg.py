"""`theano.tensor.slinalg`: linear algebra of SciPy."""

from ..forwarding import forward
from .written import (
    solve_lower_triangular,
    solve_symmetric,
    solve_upper_triangular,
)

__all__ = ["solve_lower_triangular", "solve_symmetric", "solve_upper_triangular"]

__getattr__, __dir__ = forward(
    __name__, "pytensor.tensor.linalg", "pytensor.tensor.slinalg"
)
