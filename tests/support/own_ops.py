"""Ops as users write them, registered by how they go by parts of the rows."""

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.ops import wrap_py
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import synk

SQUARE, VECTOR = pt.dmatrix, pt.dvector


class OfFunction(Op):
    """Computes what it `makes`, or what is like its input, by a function of arrays."""

    __props__ = ()
    makes: tuple = ()

    def make_node(self, *inputs):
        inputs = [pt.as_tensor_variable(x) for x in inputs]
        outputs = [kind() for kind in self.makes] or [inputs[0].type()]
        return Apply(self, inputs, outputs)

    def perform(self, node, inputs, outputs):
        results = self.compute(*inputs)
        results = results if isinstance(results, tuple) else (results,)
        for storage, value, var in zip(outputs, results, node.outputs, strict=True):
            storage[0] = np.asarray(value, var.type.dtype)

    def pullback(self, inputs, outputs, cotangents):
        raise NotImplementedError

    def L_op(self, *args):  # its name before PyTensor 3
        return self.pullback(*args)


class Unregistered(OfFunction):
    def compute(self, x):
        return np.tanh(x)


# -- registered right ------------------------------------------------------------------


class Squash(OfFunction):
    """A function of each row, x / (1 + |x|); its gradient is another Op."""

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def compute(self, x):
        return x / (1 + np.linalg.norm(x, axis=1, keepdims=True))

    def pullback(self, inputs, outputs, cotangents):
        return [SquashGrad()(*inputs, *cotangents)]


class SquashGrad(OfFunction):
    def compute(self, x, g):
        norm = np.linalg.norm(x, axis=1, keepdims=True)
        along = (x * g).sum(axis=1, keepdims=True) / np.maximum(norm, 1e-300)
        return g / (1 + norm) - x * along / (1 + norm) ** 2


class Misfit(OfFunction):
    """The sum over the rows of (y - x w)**2; its gradient is one Op, too."""

    makes = (pt.dscalar,)

    def compute(self, x, y, w):
        return ((y - x @ w) ** 2).sum()

    def pullback(self, inputs, outputs, cotangents):
        along, by_w = MisfitGrad()(*inputs, *cotangents)
        return [along[:, None] * inputs[2], -along, by_w]


class MisfitGrad(OfFunction):
    makes = VECTOR, VECTOR

    def compute(self, x, y, w, g):
        along = -2 * g * (y - x @ w)
        return along, along @ x


class Peak(OfFunction):
    makes = (VECTOR,)

    def compute(self, x):
        return x.max(axis=0)

    def pullback(self, inputs, outputs, cotangents):
        return [pt.eq(inputs[0], outputs[0]) * cotangents[0]]


class Through(OfFunction):
    """Rows through weights: linear in both."""

    makes = (SQUARE,)

    def compute(self, x, w):
        return x @ w

    def infer_shape(self, *args):  # of which the last are the shapes
        return [(args[-1][0][0], args[-1][1][1])]

    def pullback(self, inputs, outputs, cotangents):
        x, w = inputs
        return [Through()(cotangents[0], w.T), x.T @ cotangents[0]]


class Running(OfFunction):
    """A cumulative sum along an axis."""

    __props__ = ("axis",)

    def __init__(self, axis):
        self.axis = axis

    def compute(self, x):
        return np.cumsum(x, axis=self.axis)


class Average(OfFunction):
    """Statistics of rows, where each row is largest, and what has no rows."""

    makes = VECTOR, VECTOR, VECTOR, pt.lvector, VECTOR

    def compute(self, x, w):
        of_rows = x.mean(axis=0), x.min(axis=0), x.prod(axis=0), x.argmax(axis=1)
        return *of_rows, w**2


synk.register_sharding(Squash, "rowwise")
synk.register_sharding(SquashGrad, synk.Sharding([0, 0], [0], linear=[1]))
synk.register_sharding(Misfit, synk.Sharding([0, 0, None], ["sum"]))
synk.register_sharding(
    MisfitGrad, synk.Sharding([0, 0, None, None], [0, "sum"], linear=[3])
)
synk.register_sharding(Peak, "max")
synk.register_sharding(Through, synk.Sharding([0, None], [0], linear=[0, 1]))
synk.register_sharding(
    Average, synk.Sharding([0, None], ["avg", "min", "prod", 0, None])
)


@synk.register_sharding(Running)
def running(node):
    others = [axis for axis in range(node.inputs[0].ndim) if axis != node.op.axis]
    return [synk.Sharding([axis], [axis], linear=[0]) for axis in others]


class Bent(Squash):
    """With a gradient that is not said to be linear: what comes there is scaled."""

    def pullback(self, inputs, outputs, cotangents):
        return [BentGrad()(*inputs, *cotangents)]


class BentGrad(SquashGrad):
    pass


synk.register_sharding(BentGrad, "rowwise")


@wrap_py([VECTOR, VECTOR], [VECTOR])
def hypotenuse(a, b):
    return np.hypot(a, b)


synk.register_sharding(hypotenuse, "rowwise")

X, Y = pt.dmatrix("x"), pt.dvector("y")
W = pytensor.shared(np.array([0.5, -0.3, 0.2]), "w")
M = pytensor.shared(np.arange(6.0).reshape(3, 2) / 5 - 0.4, "m")


def values(rows):
    rng = np.random.default_rng(rows)
    return [rng.normal(size=(rows, 3)), rng.normal(size=rows)]
