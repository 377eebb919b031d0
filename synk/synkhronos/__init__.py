"""`import synkhronos`: scripts of synk's ancestor, unmodified.

The names of Synkhronos (https://github.com/astooke/Synkhronos, 2017), which ran Theano
functions on several GPUs, for what synk does. `synk.finders.theano_names` makes
``synkhronos.x`` and `synk.synkhronos.x` one module.

Most names are synk's own; those that took other arguments are in `names`. An output
without an op gets the one that gives the serial result, where Synkhronos averaged
whatever it was.
"""

from .. import Data, Function, close, data, distribute, get_lengths, get_shapes
from .names import (
    all_gather,
    all_reduce,
    broadcast,
    fork,
    function,
    gather,
    get_value,
    make_slices,
    reduce,
    scatter,
    set_value,
)

__all__ = [
    "Data",
    "Function",
    "all_gather",
    "all_reduce",
    "broadcast",
    "close",
    "data",
    "distribute",
    "fork",
    "function",
    "gather",
    "get_lengths",
    "get_shapes",
    "get_value",
    "make_slices",
    "reduce",
    "scatter",
    "set_value",
]
