"""Draws for rows: how a rank comes to its rows' numbers of a stream that all share.

The serial run draws the numbers of all rows one after the other. A rank that has the
rows from `first` on passes those before, draws its own, and the stream goes on behind
those of all ranks. `Passed` does the first and the last; between the two is the random
variable's own Op, as the user has written it. ::

    stream --Passed(rows before)--> . --draw(own rows)--> numbers
      |
      '----Passed(all rows)------------------------------> new value of the stream

So the new value is known without rows, as it is to ranks that have none. Where all is
compiled as one, the stream goes on behind the rank's rows, in place: `go_on_behind`.

What it costs to pass draws depends on what they take from the stream:

*One number each*: `SKIPPED`. A generator that can be told to go on by so many numbers
does so in no time; NumPy's PCG64 is one.

*Several*, such as the normal's: they are drawn and thrown away. Where that many are
taken whatever the parameters are, as of locations and scales, those of the other ranks'
rows need not be known: `OF_ANY_PARAMETERS`.

JAX computes each number from a key and its place. There nothing is passed: see
`engines.passed_draws`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
import pytensor.tensor.random.basic as ptr
from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.random.op import RandomVariable

# Each draw takes one number of 64 bits, in NumPy and in numba.
SKIPPED = (ptr.UniformRV, ptr.TriangularRV, ptr.CategoricalRV)

# Draws that take as many numbers whatever their parameters are; and some of these.
OF_ANY_PARAMETERS: dict[type[RandomVariable], tuple[Any, ...]] = {
    **dict.fromkeys((ptr.UniformRV, ptr.NormalRV, ptr.HalfNormalRV), (0.0, 1.0)),
    **dict.fromkeys((ptr.LogNormalRV, ptr.LaplaceRV, ptr.LogisticRV), (0.0, 1.0)),
    **dict.fromkeys((ptr.GumbelRV, ptr.CauchyRV, ptr.HalfCauchyRV), (0.0, 1.0)),
    **dict.fromkeys((ptr.ParetoRV, ptr.WaldRV), (1.0, 1.0)),
    ptr.ExponentialRV: (1.0,),
    ptr.TriangularRV: (0.0, 0.5, 1.0),
    ptr.CategoricalRV: ((1.0,),),
}

# Draws that take as many as their parameters make them; of all others it is not known
# that an array of them is drawn one after the other.
BY_PARAMETERS = (
    *(ptr.BernoulliRV, ptr.BinomialRV, ptr.NegBinomialRV, ptr.GeometricRV),
    *(ptr.PoissonRV, ptr.GammaRV, ptr.InvGammaRV, ptr.BetaRV, ptr.WeibullRV),
    *(ptr.VonMisesRV, ptr.StudentTRV, ptr.TruncExponentialRV, ptr.GenGammaRV),
    ptr.IntegersRV,
)

_AT_ONCE = 1 << 18  # numbers that are drawn at once, where they are thrown away
_LARGEST = 1.0 - 2.0**-53  # of the numbers that a generator's ``random`` gives


def is_one_by_one(draw: RandomVariable) -> bool:
    """Tell whether an array is drawn as its parts would be, one after the other."""
    return type(draw) in OF_ANY_PARAMETERS or type(draw) in BY_PARAMETERS


class Passed(Op):
    """The state of a stream after a number of a random variable's draws.

    These are those of rows before a rank's, all, or those of rows "behind" the rank's.
    With `takes_one` each takes one number of the stream, whatever NumPy's takes.
    """

    __props__ = ("draw", "where", "takes_one", "inplace")

    def __init__(
        self, draw: RandomVariable, where: str, takes_one: bool, inplace: bool = False
    ) -> None:
        self.draw, self.where = draw, where
        self.takes_one, self.inplace = takes_one, inplace
        if inplace:  # the stream itself is led on, and no copy
            self.destroy_map = {0: [0]}

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to a stream, the lengths of what it passes and of all, and more.

        What follows are the draws' parameters.
        """
        rng, *rest = inputs
        rest = list(map(pt.as_tensor_variable, rest))
        return Apply(self, [rng, *rest], [rng.type()])

    def perform(self, node: Apply, inputs: Sequence, output_storage: Sequence) -> None:
        """Lead the stream on."""
        rng, size, _, *params = inputs
        if not self.inplace:
            rng = generator_in(type(rng.bit_generator), rng.bit_generator.state)
        self.lead_on(rng, size, params)
        output_storage[0][0] = rng

    def lead_on(self, rng: Any, size: Any, params: Sequence[Any]) -> None:
        """Lead a generator on by draws of some lengths."""
        is_coin = isinstance(self.draw, (ptr.BernoulliRV, ptr.BinomialRV))
        if self.takes_one or (is_coin and _takes_one(params)):
            skip(rng, math.prod(map(int, size)))
            return
        first, rest = int(size[0]), tuple(map(int, size[1:]))
        each = max(1, _AT_ONCE // max(1, math.prod(rest)))
        for i in range(0, first, each):
            self.draw.rng_fn(rng, *params, (min(each, first - i), *rest))

    def infer_shape(self, *args: Any) -> Sequence:
        """Return that a stream has none."""
        return [None]

    def __str__(self) -> str:
        one = ", one each" if self.takes_one else ""
        return f"Passed{{{self.draw.name}, {self.where}{one}}}"


@node_rewriter([Passed])
def go_on_behind(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Have a stream that passes all draws go on from where a rank's rows end."""
    op: Any = node.op
    if op.where != "all":
        return None
    every: Any
    stream, _, every, *params = node.inputs
    for user, _ in fgraph.clients[stream]:
        passed = getattr(user, "op", None)
        if not isinstance(passed, Passed) or passed.where != "before":
            continue
        if passed.draw != op.draw or user.inputs[2:] != node.inputs[2:]:
            continue
        for drawn, _ in fgraph.clients[user.outputs[0]]:
            if isinstance(getattr(drawn, "op", None), RandomVariable):
                after, numbers = drawn.outputs
                before: Any = user.inputs[1]
                behind = every[0] - before[0] - pt.shape(numbers)[0]
                rest = [every[i] for i in range(1, pt.get_vector_length(every))]
                size = pt.stack([behind, *rest])
                made = Passed(op.draw, "behind", op.takes_one)
                return made.make_node(after, size, every, *params).outputs
    return None


@node_rewriter([Passed], inplace=True)
def go_on_in_place(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Lead the stream itself on where nothing else needs it as it was."""
    op: Any = node.op
    if op.inplace:
        return None
    return Passed(op.draw, op.where, op.takes_one, True).make_node(*node.inputs).outputs


for rewriter, position in ((go_on_behind, 50.7), (go_on_in_place, 50.8)):
    # Before PyTensor has draws lead streams on in place.
    optdb.register(
        f"synk_{rewriter.__name__}",
        dfs_rewriter(rewriter, ignore_newtrees=True),
        *("fast_run", "inplace"),
        position=position,
    )


def generator_in(kind: type[np.random.BitGenerator], state: Any) -> np.random.Generator:
    """Return a generator of a kind in a state."""
    bits: Any = kind(0)  # a seed, as it would ask the system for one
    bits.state = state
    return np.random.Generator(bits)


def skip(rng: np.random.Generator, count: int) -> None:
    """Lead a generator on by a number of doubles.

    One half of a number of 64 bits that draws of 32 bits have left stays for the next
    such draw.
    """
    bits: Any = rng.bit_generator
    if isinstance(bits, (np.random.PCG64, np.random.PCG64DXSM)):
        before: Any = bits.state
        bits.advance(count)
        after: Any = {**before, "state": bits.state["state"]}
        bits.state = after
        return
    for i in range(0, count, _AT_ONCE):
        rng.random(min(_AT_ONCE, count - i))


# -- coins


def is_one_coin(draw: Any, params: Sequence[Variable]) -> bool:
    """Tell whether draws are known to be 0 or 1: of coins that are tossed once."""
    if not isinstance(draw, ptr.BinomialRV):
        return isinstance(draw, ptr.BernoulliRV)
    try:
        return bool(pt.get_underlying_scalar_constant_value(params[0]) == 1)
    except NotScalarConstantError:
        return False


def _takes_one(params: Sequence[Any]) -> bool:
    """Tell whether NumPy tosses each coin with one number of the stream.

    It draws a uniform number U below 1 and compares it with q = 1 - p, where p is the
    probability of the rarer side. If it is larger, it compares U - q with p q / q, as
    rounded; if that is larger, too, it starts again. The largest U tells whether that
    can be. With p = 0 it draws none. See ``random_binomial_inversion`` in NumPy's
    ``random/src/distributions/distributions.c``, which takes q from its logarithm: by
    ``log``, as numba's does, or by ``log1p``.
    """
    *n, p = map(np.asarray, params)
    if not all((many == 1).all() for many in n):
        return False
    return all(map(_is_tossed_once, np.unique(p.astype("float64")).tolist()))


def _is_tossed_once(p: float) -> bool:
    if not 0 < p < 1:
        return False
    p = min(p, 1.0 - p)
    q = 1.0 - p
    taken = math.exp(math.log(q)), math.exp(math.log1p(-p))
    return all(_LARGEST - each <= p * each / q for each in taken)


# -- streams of a rank's or a slice's own

# What a stream is derived for. A user's own children of a seed have other keys.
RANK, ROWS, SLICE = 0x73796E6B, 0x726F7773, 0x736C6963


def derived(generator: np.random.Generator, *key: int) -> np.random.Generator:
    """Return the stream with a key among those that follow from a generator's state.

    They are children of a ``SeedSequence``, as ``SeedSequence.spawn`` makes them, so
    independent of each other and the same in every run. The generator stays as it is.
    """
    # From the state and not the seed alone: after some draws, and in a second session,
    # the other ranks must go on to new numbers as the master does.
    draws = copy.deepcopy(generator).integers(0, 2**32, 8, dtype=np.uint64)
    parent = np.random.SeedSequence([int(draw) for draw in draws])
    child = np.random.SeedSequence(parent.entropy, spawn_key=key)
    return np.random.Generator(type(generator.bit_generator)(child))
