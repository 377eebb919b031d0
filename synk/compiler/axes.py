"""Where Ops keep the axis along which they work: another place in PyTensor 3.3.

There the axis of ``Join``, ``Split``, ``SortOp`` and ``ArgSortOp`` is the Op's own;
before, it is one of the inputs. ``test_reducing_ops.py`` has a graph with each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytensor.graph.basic import Apply, Constant
from pytensor.tensor.basic import Join


def apart(node: Apply, given: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Return the axis of one of these Ops, and what is given for its other inputs.

    Parameters
    ----------
    node : Apply
    given : sequence
        Something for each input, such as the inputs themselves.

    Returns
    -------
    axis : int, or what is given for it
        An int, not negative, where the axis is the Op's own or a constant.
    others : list
    """
    if "axis" in node.op.__props__:
        return node.op.axis, list(given)
    place = 0 if isinstance(node.op, Join) else 1
    var = node.inputs[place]
    axis = given[place]
    if isinstance(var, Constant) and var.data is not None:
        axis = int(var.data) % max(node.outputs[0].type.ndim, 1)
    return axis, [*given[:place], *given[place + 1 :]]
