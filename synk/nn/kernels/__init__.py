"""Kernels in C++, for functions that PyTensor compiles to C.

An Op's parameters are passed to a kernel when it runs. So nothing of them is in the
code, which is compiled once for each class of Op and dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pytensor.link.c.params_type import ParamsType
from pytensor.scalar import int64

VERSION = 2
"""To be raised with every change of the code in this folder."""

DTYPES = ("float32", "float64")


class Kernels:
    """The kernels of some Ops.

    Parameters
    ----------
    namespace : str
        Where functions ``compute_NAME`` are that take `Parameters`, the inputs, and a
        pointer to the output, all of numpy's arrays; they return false if they have set
        an error.
    files : sequence of str
        Their code; each builds on those before it.
    fields : str
        The names of an Op's parameters, separated by blanks, in the order of the struct
        `Parameters`. All are whole numbers.
    """

    def __init__(self, namespace: str, files: Sequence[str], fields: str) -> None:
        self.namespace = namespace
        self.files = tuple(files)
        self._fields = fields.split()
        self.params_type = ParamsType(**dict.fromkeys(self._fields, int64))

    def parameters(self, *values: int) -> Any:
        """Return parameters as PyTensor passes them to code."""
        named = dict(zip(self._fields, values, strict=True))
        return self.params_type.get_params(**named)

    def code(self) -> str:
        """Return the code of the kernels."""
        return "\n".join(map(code_of, self.files))

    def call(
        self, kernel: str, inputs: Sequence[str], output: str, sub: dict[str, str]
    ) -> str:
        """Return code that calls a kernel, in terms of PyTensor's names."""
        values = ", ".join(f"{sub['params']}->{field}" for field in self._fields)
        return f"""
        {{
        const {self.namespace}::Parameters parameters = {{{values}}};
        if (!{self.namespace}::compute_{kernel}<dtype_{output}>(
                parameters, {", ".join(inputs)}, &{output})) {{ {sub["fail"]} }}
        }}
        """


@cache
def code_of(name: str) -> str:
    """Return the code of a file."""
    return Path(__file__).with_name(f"{name}.h").read_text()
