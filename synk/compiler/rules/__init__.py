"""What each Op does to rows; a file for each kind of Ops."""

from . import (  # noqa: F401  they register their rules
    elementwise,
    indexing,
    inner,
    products,
    randomness,
    reductions,
    shapes,
)
