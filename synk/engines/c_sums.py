"""Sums in C of many numbers at a time, where the last axis is summed over.

PyTensor's C code adds one number after another to a float64, each of which waits for
the one before. Here 16 sums go side by side. So the last bits differ from PyTensor's;
the error is rather smaller.
"""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply
from pytensor.scalar import Add
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.math import Sum

from ..nn.kernels import code_of

_VERSION = 2
"""To be raised with every change of the code."""

_FLOATS = ("float32", "float64")

_SUM_ROW = """
namespace synk_sums {

enum { LANES = 16 };

template <typename T> double sum_row(const T *x, npy_intp count) {
    if (count < LANES) {
        double sum = 0;
        for (npy_intp i = 0; i < count; i++) sum += x[i];
        return sum;
    }
    double sums[LANES] = {};
    npy_intp i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int lane = 0; lane < LANES; lane++) sums[lane] += x[i + lane];
    for (int lane = 0; i < count; i++, lane++) sums[lane] += x[i];
    for (int half = LANES / 2; half; half /= 2)
        for (int lane = 0; lane < half; lane++) sums[lane] += sums[lane + half];
    return sums[0];
}

} // namespace synk_sums
"""


def with_vectors(node: Apply) -> Sum | None:
    """Return the Op that replaces a node's; None if that is to stay.

    It is for sums of floats in float64, over the last axis or some of the last, and
    others.
    """
    op = node.op
    if not isinstance(op, CAReduce) or not isinstance(op.scalar_op, Add):
        return None
    (x,), (y,) = node.inputs, node.outputs
    axes = _axes(op, x.type.ndim)
    if x.type.ndim - 1 not in axes or op.acc_dtype != "float64":
        return None
    if x.type.dtype not in _FLOATS or y.type.dtype not in _FLOATS:
        return None
    return VectorSum(axis=op.axis, dtype=op.dtype, acc_dtype=op.acc_dtype)


def _axes(op: CAReduce, ndim: int) -> tuple[int, ...]:
    return tuple(range(ndim)) if op.axis is None else op.axis


class VectorSum(Sum):
    """A sum over the last axis and maybe others."""

    def c_support_code(self, **kwargs: Any) -> str:
        """Return the kernel."""
        return code_of("arrays") + _SUM_ROW

    def c_code_cache_version_apply(self, node: Apply) -> tuple:
        """Return what tells PyTensor's cache of code of another version."""
        theirs = super().c_code_cache_version_apply(node)
        return (*theirs, "synk", _VERSION) if theirs else ()

    def c_code(
        self, node: Apply, name: str, inames: Any, onames: Any, sub: dict[str, str]
    ) -> str:
        """Return code for arrays in C order, and PyTensor's for others."""
        (x,), (y,) = inames, onames
        ndim = node.inputs[0].type.ndim
        axes = _axes(self, ndim)
        kept = [axis for axis in range(ndim) if axis not in axes]
        last = max(kept, default=-1)
        sizes = [f"PyArray_DIM({x}, {axis})" for axis in range(ndim)]
        shape = ", ".join(sizes[axis] for axis in kept) or "0"
        type_number = node.outputs[0].type.dtype_specs()[2]
        loops, place = "", "0"
        for axis in range(last + 1):
            loops += f"for (npy_intp i{axis} = 0; i{axis} < {sizes[axis]}; i{axis}++)\n"
            if axis in kept:
                place = f"({place}) * {sizes[axis]} + i{axis}"
        return f"""
        if (PyArray_IS_C_CONTIGUOUS({x})) {{
            const npy_intp shape[] = {{{shape}}};
            const npy_intp count = {" * ".join(sizes[last + 1 :])};
            if (!synk_arrays::make_room(&{y}, {len(kept)}, shape, {type_number}))
                {{ {sub["fail"]} }}
            const npy_intp results = PyArray_SIZE({y});
            synk_arrays::Room<double> sums(results);
            if (!synk_arrays::check_memory(sums.at)) {{ {sub["fail"]} }}
            for (npy_intp i = 0; i < results; i++) sums.at[i] = 0;
            const dtype_{x} *x = (const dtype_{x} *) PyArray_DATA({x});
            {loops} {{
                sums.at[{place}] += synk_sums::sum_row(x, count);
                x += count;
            }}
            dtype_{y} *y = (dtype_{y} *) PyArray_DATA({y});
            for (npy_intp i = 0; i < results; i++) y[i] = (dtype_{y}) sums.at[i];
        }} else {{
            {super().c_code(node, name, inames, onames, sub)}
        }}
        """
