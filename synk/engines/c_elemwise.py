"""Elementwise Ops in C on arrays in C order: adjoining axes become one.

A bias (1, channels, 1, 1) and images (batch, channels, rows, columns) are to PyTensor's
C code four loops, one within another, of which the inner one goes along the columns of
one row. But rows and columns are one axis in memory: here the inner loop goes along all
pixels, with one number of the bias.
"""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.scalar import get_scalar_type
from pytensor.tensor.elemwise import Elemwise

from ..nn.kernels import code_of

_VERSION = 2
"""To be raised with every change of the code."""


def with_vectors(node: Apply) -> Elemwise | None:
    """Return the Op that replaces a node's; None if that is to stay.

    It is for real numbers, and for axes of which some adjoin that are alike: each
    input has either all of them or none.
    """
    op = node.op
    if type(op) is not Elemwise or op.openmp:
        return None
    variables = (*node.inputs, *node.outputs)
    if any(var.type.dtype in _OTHERS for var in variables):
        return None
    groups = _groups(node)
    if sum(map(len, groups)) == len(groups):
        return None
    return VectorElemwise(op.scalar_op, op.inplace_pattern, op.name, op.nfunc_spec)


_OTHERS = ("float16", "complex64", "complex128")


def _groups(node: Apply) -> list[list[int]]:
    """Return adjoining axes along which the same inputs have a length.

    Those along which no input has one are left out.
    """
    groups: list[list[int]] = []
    before: tuple[bool, ...] = ()
    for axis in range(node.outputs[0].type.ndim):
        pattern = tuple(var.type.broadcastable[axis] for var in node.inputs)
        if all(pattern):
            continue
        if groups and pattern == before:
            groups[-1].append(axis)
        else:
            groups.append([axis])
        before = pattern
    return groups


class VectorElemwise(Elemwise):
    """An elementwise Op whose inner loop goes along axes that adjoin."""

    def c_support_code(self, **kwargs: Any) -> str:
        """Return what PyTensor's has, and how room is made for results."""
        return super().c_support_code(**kwargs) + code_of("arrays")

    def c_code_cache_version_apply(self, node: Apply) -> tuple:
        """Return what tells PyTensor's cache of code of another version."""
        theirs = super().c_code_cache_version_apply(node)
        return (*theirs, "synk", _VERSION) if theirs else ()

    def c_code(
        self, node: Apply, nodename: str, inames: Any, onames: Any, sub: dict[str, str]
    ) -> str:
        """Return code for arrays in C order, and PyTensor's for others."""
        theirs = super().c_code(node, nodename, inames, onames, sub)
        inputs = dict(zip(inames, node.inputs, strict=True))
        scalars = [[*map(_scalar, some)] for some in (node.inputs, node.outputs)]
        code = self.scalar_op.c_code(
            Apply(self.scalar_op, *scalars),
            f"{nodename}_scalar_",
            [f"{x}_i" for x in inames],
            [f"{y}_i" for y in onames],
            sub,
        )
        # gcc takes two numbers to be different, mostly, and code that is hardly run is
        # made short, not fast; so it is told.
        return f"""
        const bool {nodename}_in_order = {_are_in_order(inputs)};
        if (__builtin_expect({nodename}_in_order, 1)) {{
            {self._make_room(node, inputs, inames, onames, sub)}
            {_loops(node, inputs, onames, code)}
        }} else {{
            {theirs}
        }}
        """

    def _make_room(
        self, node: Apply, inputs: dict, inames: Any, onames: Any, sub: dict[str, str]
    ) -> str:
        """Return code that makes room for results that do not take an input's."""
        ndim = node.outputs[0].type.ndim
        shape = [_size(inputs, axis) for axis in range(ndim)]
        code = [f"const npy_intp shape[] = {{{', '.join(shape)}}};"]
        for i, (y, var) in enumerate(zip(onames, node.outputs, strict=True)):
            if i in self.inplace_pattern:
                x = inames[self.inplace_pattern[i]]
                code.append(f"Py_INCREF({x}); Py_XDECREF({y}); {y} = {x};")
            else:
                type_number = var.type.dtype_specs()[2]
                code.append(
                    f"if (!synk_arrays::make_room(&{y}, {ndim}, shape, {type_number}))"
                    f" {{ {sub['fail']} }}"
                )
        return "\n".join(code)


def _scalar(var: Variable) -> Variable:
    """Return a scalar of a tensor's dtype."""
    return get_scalar_type(var.type.dtype).make_variable()


def _along(inputs: dict, axis: int) -> list[str]:
    """Return the names of inputs that have a length along an axis."""
    return [x for x, var in inputs.items() if not var.type.broadcastable[axis]]


def _size(inputs: dict, axis: int) -> str:
    """Return code for the length of results along an axis."""
    having = _along(inputs, axis)
    return f"PyArray_DIM({having[0]}, {axis})" if having else "1"


def _are_in_order(inputs: dict) -> str:
    """Return a condition: arrays are in C order, and lengths the same.

    Where they are not, PyTensor's code raises an error.
    """
    ndim = next(iter(inputs.values())).type.ndim
    conditions = [f"(PyArray_IS_C_CONTIGUOUS({x}) != 0)" for x in inputs]
    for axis in range(ndim):
        size = _size(inputs, axis)
        conditions += [
            f"(PyArray_DIM({x}, {axis}) == {size})" for x in _along(inputs, axis)[1:]
        ]
    return " & ".join(conditions)


def _loops(node: Apply, inputs: dict, onames: Any, code: str) -> str:
    """Return loops over groups of axes; the inner one is over elements."""
    groups = _groups(node)
    lines = []
    for k, group in enumerate(groups):
        size = " * ".join(_size(inputs, axis) for axis in group)
        lines.append(f"const npy_intp n{k} = {size};")
    for k in range(len(groups) - 1):
        lines.append(f"for (npy_intp i{k} = 0; i{k} < n{k}; i{k}++)")
    lines.append("{")
    within = ""
    for x, var in inputs.items():
        having = [k for k, g in enumerate(groups) if not var.type.broadcastable[g[0]]]
        at = f"const dtype_{x} *{x}_p = (const dtype_{x} *) PyArray_DATA({x})"
        lines.append(f"{at} + {_offset(having, len(groups))};")
        if len(groups) - 1 in having:
            within += f"const dtype_{x} {x}_i = {x}_p[i];\n"
        else:
            lines.append(f"const dtype_{x} {x}_i = *{x}_p;")
    for y in dict.fromkeys(onames):
        at = f"dtype_{y} *{y}_p = (dtype_{y} *) PyArray_DATA({y})"
        lines.append(f"{at} + {_offset(range(len(groups)), len(groups))};")
        within += f"dtype_{y} &{y}_i = {y}_p[i];\n"
    return "\n".join(
        [
            *lines,
            # A result may lie where an input does, but each element is read before.
            "#pragma GCC ivdep",
            f"for (npy_intp i = 0; i < n{len(groups) - 1}; i++) {{",
            within,
            code,
            "}",
            "}",
        ]
    )


def _offset(having: Any, groups: int) -> str:
    """Return where the inner loop begins in an array with some of the groups."""
    offset = "0"
    for k in having:
        index = f"i{k}" if k < groups - 1 else "0"
        offset = f"({offset}) * n{k} + {index}"
    return offset
