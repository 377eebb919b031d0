"""Convolution in C, for graphs that PyTensor compiles to C; the kernels: ``conv_c.h``.

The code has nothing of an Op's parameters in it: they are passed when it runs. So it is
compiled once for all convolutions of a dtype.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from pytensor.link.c.params_type import ParamsType
from pytensor.scalar import int64

from .geometry import Border

VERSION = 1
"""To be raised with every change of the code here and in ``conv_c*.h``."""

_FIELDS = (
    "border", "top", "bottom", "left", "right", "down", "along", "flip", "groups"
)  # fmt: skip
_BORDERS = {"half": 1, "full": 2}

PARAMETERS = ParamsType(**dict.fromkeys(_FIELDS, int64))


def is_for(stride: tuple[int, ...], dtype: str) -> bool:
    """Tell whether there are kernels: for images at a stride of 1, of usual floats."""
    return stride == (1, 1) and dtype in ("float32", "float64")


def parameters(
    border: Border, dilation: tuple[int, ...], flip: bool, groups: int
) -> Any:
    """Return those of a convolution of images as the code gets them."""
    kind, pads = 0, border
    if isinstance(pads, str):
        kind, pads = _BORDERS[pads], ((0, 0), (0, 0))
    values = (kind, *pads[0], *pads[1], *dilation, int(flip), groups)
    return PARAMETERS.get_params(**dict(zip(_FIELDS, values, strict=True)))


@cache
def support_code() -> str:
    """Return the kernels."""
    files = map(Path(__file__).with_name, ("conv_c.h", "conv_c_op.h"))
    return "\n".join(file.read_text() for file in files)


def call(kernel: str, inputs: list[str], output: str, sub: dict[str, str]) -> str:
    """Return code that calls ``compute_`` of a kernel's name."""
    values = ", ".join(f"{sub['params']}->{field}" for field in _FIELDS)
    return f"""
    {{
    const synk_conv::Parameters parameters = {{{values}}};
    if (!synk_conv::compute_{kernel}<dtype_{output}>(
            parameters, {", ".join(inputs)}, &{output})) {{ {sub["fail"]} }}
    }}
    """
