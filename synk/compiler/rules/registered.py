"""Has all rules for PyTensor's Ops in the table."""

from . import (  # noqa: F401
    allocation,
    along,
    arrangement,
    elementwise,
    index_arrays,
    indexing,
    inner,
    products,
    randomness,
    reductions,
    reshape,
    scans,
    shapes,
    views,
)
