"""BLAS for PyTensor's C code with nothing installed: the OpenBLAS of SciPy's wheels.

Without ``config.blas__ldflags`` PyTensor leaves products of matrices to NumPy, and
those of a matrix and a vector to slow code of its own. SciPy, which it needs anyway,
brings an OpenBLAS in the folder ``scipy.libs`` beside its package. It has integers of
32 bits, as PyTensor's C code has (NumPy's own has 64), and names of its own:
``scipy_dgemm_``. What stands in ``blas__ldflags`` reaches the compiler, ``-D`` too; so
the names are changed as the code is compiled.

`pytensor.tensor` imports `scipy.linalg`, which loads this very file. So what is
compiled brings no other library into the process, and no threads beside those that were
capped before the fork, see ``synk/workers/pools.py``.
"""

from __future__ import annotations

import ctypes
import re
import shlex
from functools import cache
from importlib.util import find_spec
from pathlib import Path

FUNCTIONS = tuple(
    f"{precision}{name}_"
    for name in ("gemm", "gemv", "ger", "dot", "axpy")
    for precision in "sd"
)
"""What PyTensor's C code calls, by the names that Fortran gives."""

_PREFIX = "scipy_"


def scipy_folder() -> Path | None:
    """Return where SciPy's wheels for Linux have libraries, None without SciPy."""
    spec = find_spec("scipy")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    return package.with_name(f"{package.name}.libs")


@cache
def ldflags(folder: Path | None) -> str:
    """Return the ``blas__ldflags`` for an OpenBLAS of SciPy's in a folder.

    Empty where there is none with 32 bits and all the functions, as where SciPy does
    not come from a wheel.
    """
    if folder is None or not folder.is_dir():
        return ""
    named = re.compile(r"lib(scipy_openblas-\w+)\.so")  # not those of scipy_openblas64_
    for path in sorted(folder.iterdir()):
        found = named.fullmatch(path.name)
        if found is not None and _has_functions(path):
            renamed = [f"-D{name}={_PREFIX}{name}" for name in FUNCTIONS]
            return shlex.join([f"-L{folder}", f"-l{found[1]}", *renamed])
    return ""


def _has_functions(path: Path) -> bool:
    try:
        library = ctypes.CDLL(str(path))
    except OSError:  # of another platform
        return False
    return all(hasattr(library, _PREFIX + name) for name in FUNCTIONS)
