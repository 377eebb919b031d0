"""The C++ compiler: whether there is one, and which flags of it are worth giving.

PyTensor's flags leave each ``exp`` of an array a call of the C library. Those here have
gcc call glibc's vector functions (libmvec), for eight float64 at once with AVX-512:

``-D__FAST_MATH__``
    glibc's headers declare its vector functions under this macro. gcc defines it with
    ``-ffast-math``, which is not given: that would assume finite values, and flush
    denormals to zero in the whole process.
``-fno-trapping-math``
    Operations may be made that are not needed, such as both branches of a condition,
    as nobody looks at the processor's exception flags.
``-fno-math-errno``
    Functions need not set ``errno``. PyTensor gives this one itself.
``-mprefer-vector-width=512``
    gcc prefers 256 bits otherwise, where it may take 512.
``-fvect-cost-model=unlimited``
    PyTensor's loops over several arrays take their strides as they come, which gcc
    otherwise thinks too dear to vectorise: ``tanh(x + b)`` of 512 x 800 float32 takes
    0.4 ms with this and 7.4 without. (Sums and products of two vectors of float32 may
    take half as long again.)

NaN, infinities, signed zeros, denormals and limits stay as they are without; rounding
may differ in the last bits. Not given are ``-fassociative-math -fno-signed-zeros``,
though sums of squares take half the time with them: infinities get another sign
(``1 // -0.0``), and digamma near its zeros loses digits.
``test_modes_engines.py`` compares values.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sysconfig
from functools import cache
from typing import Any

from pytensor import config
from pytensor.compile import get_mode
from pytensor.link.c.basic import CLinker, OpWiseCLinker
from pytensor.link.vm import VMLinker

VECTOR_FLAGS = (
    "-fno-math-errno -fno-trapping-math -D__FAST_MATH__"
    " -mprefer-vector-width=512 -fvect-cost-model=unlimited"
)

_GCC = 8
"""The first that knows all of them."""


def c_is_there() -> bool:
    """Tell whether graphs can be compiled to C here, without trying.

    That takes a compiler that PyTensor has found or was told of, and Python's headers.
    """
    headers = sysconfig.get_path("include")
    has_headers = os.path.exists(os.path.join(headers, "Python.h"))
    return bool(config.cxx) and shutil.which(config.cxx) is not None and has_headers


def is_for_c(mode: Any) -> bool:
    """Tell whether one of PyTensor's modes is for C, if there is a compiler."""
    linker: Any = get_mode(mode).linker
    if isinstance(linker, VMLinker):
        # Without a compiler as PyTensor is imported, its linkers make no thunks in C.
        return bool(linker.c_thunks or linker.use_cloop)
    return isinstance(linker, (CLinker, OpWiseCLinker))


def makes_c(mode: Any) -> bool:
    """Tell whether graphs are compiled to C in one of PyTensor's modes."""
    return bool(config.cxx) and is_for_c(mode)


def vector_flags() -> str:
    """Return flags that open glibc's vector functions, none for other compilers."""
    if platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc":
        return ""
    return VECTOR_FLAGS if gcc_version(config.cxx) >= _GCC else ""


@cache
def gcc_version(compiler: str) -> int:
    """Return the major version of gcc, 0 if a compiler is another or cannot be run."""
    if not re.search(r"(^|-)(g\+\+|gcc)(-|$)", os.path.basename(compiler)):
        return 0
    command = [compiler, "-dumpversion"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    number = re.match(r"\d+", run.stdout)
    return int(number[0]) if number else 0
