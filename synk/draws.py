"""Random draws for rows: each rank gets its rows' numbers of the serial run's stream.

The serial run draws the numbers of all rows one after the other. A rank skips the draws
of the rows before its own, draws for its rows, and then the stream continues after the
draws of all rows. `Passed` skips; the draw is the random variable's own Op, as the user
has written it. ::

    stream --Passed(rows before)--> . --draw(own rows)--> numbers
      |
      '----Passed(all rows)------------------------------> new value of the stream

So a rank without rows knows the new value of the stream, too. If all this is compiled
as one graph, the stream continues from the end of the rank's rows, in place:
`go_on_behind`.

The cost of skipping depends on the numbers that each draw takes from the generator:

*One*: `SKIPPED`. Generators such as NumPy's PCG64 skip any number of these at once.

*Several*, as the normal's: they are drawn and thrown away. If the parameters do not
change how many are taken, as for locations and scales, the parameters of the other
ranks' rows need not be known: `OF_ANY_PARAMETERS`.

JAX computes each number from a key and its place, and skips nothing: see
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

# Distributions whose draws take as many numbers for any parameters, with valid ones.
OF_ANY_PARAMETERS: dict[type[RandomVariable], tuple[Any, ...]] = {
    **dict.fromkeys((ptr.UniformRV, ptr.NormalRV, ptr.HalfNormalRV), (0.0, 1.0)),
    **dict.fromkeys((ptr.LogNormalRV, ptr.LaplaceRV, ptr.LogisticRV), (0.0, 1.0)),
    **dict.fromkeys((ptr.GumbelRV, ptr.CauchyRV, ptr.HalfCauchyRV), (0.0, 1.0)),
    **dict.fromkeys((ptr.ParetoRV, ptr.WaldRV), (1.0, 1.0)),
    ptr.ExponentialRV: (1.0,),
    ptr.TriangularRV: (0.0, 0.5, 1.0),
    ptr.CategoricalRV: ((1.0,),),
}

# Distributions whose parameters determine how many numbers a draw takes. Others may not
# draw the elements of an array one after the other.
BY_PARAMETERS = (
    *(ptr.BernoulliRV, ptr.BinomialRV, ptr.NegBinomialRV, ptr.GeometricRV),
    *(ptr.PoissonRV, ptr.GammaRV, ptr.InvGammaRV, ptr.BetaRV, ptr.WeibullRV),
    *(ptr.VonMisesRV, ptr.StudentTRV, ptr.TruncExponentialRV, ptr.GenGammaRV),
    ptr.IntegersRV,
)

_AT_ONCE = 1 << 18  # numbers to draw at once and throw away
_LARGEST = 1.0 - 2.0**-53  # the largest number that a generator's ``random`` returns


def is_one_by_one(draw: RandomVariable) -> bool:
    """Return whether drawing an array equals drawing its parts one after the other."""
    return type(draw) in OF_ANY_PARAMETERS or type(draw) in BY_PARAMETERS


class Passed(Op):
    """The state of a stream after skipping draws of a random variable.

    `where` tells whose draws: of the rows "before" a rank's, of "all" rows, or of those
    "behind" the rank's. With `takes_one` each draw takes one number of the stream, even
    if NumPy's may take more.
    """

    __props__ = ("draw", "where", "takes_one", "inplace")

    def __init__(
        self, draw: RandomVariable, where: str, takes_one: bool, inplace: bool = False
    ) -> None:
        self.draw, self.where = draw, where
        self.takes_one, self.inplace = takes_one, inplace
        if inplace:  # advance the stream itself, not a copy
            self.destroy_map = {0: [0]}

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to a stream, the shapes skipped and of all draws, parameters."""
        rng, *rest = inputs
        rest = list(map(pt.as_tensor_variable, rest))
        return Apply(self, [rng, *rest], [rng.type()])

    def perform(self, node: Apply, inputs: Sequence, output_storage: Sequence) -> None:
        """Store the stream after the draws."""
        rng, size, _, *params = inputs
        if not self.inplace:
            rng = generator_in(type(rng.bit_generator), rng.bit_generator.state)
        self.lead_on(rng, size, params)
        output_storage[0][0] = rng

    def lead_on(self, rng: Any, size: Any, params: Sequence[Any]) -> None:
        """Advance a generator by draws; numba's disk cache refers to this method."""
        is_coin = isinstance(self.draw, (ptr.BernoulliRV, ptr.BinomialRV))
        if self.takes_one or (is_coin and _takes_one(params)):
            skip(rng, math.prod(map(int, size)))
            return
        first, rest = int(size[0]), tuple(map(int, size[1:]))
        each = max(1, _AT_ONCE // max(1, math.prod(rest)))
        for i in range(0, first, each):
            self.draw.rng_fn(rng, *params, (min(each, first - i), *rest))

    def infer_shape(self, *args: Any) -> Sequence:
        """Return None, as a stream has no shape."""
        return [None]

    def __str__(self) -> str:
        one = ", one each" if self.takes_one else ""
        return f"Passed{{{self.draw.name}, {self.where}{one}}}"


@node_rewriter([Passed])
def go_on_behind(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Replace "all" of a stream by "behind" of the stream after a rank's own draws."""
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
    """Advance the stream in place; PyTensor rejects that if it has other uses."""
    op: Any = node.op
    if op.inplace:
        return None
    return Passed(op.draw, op.where, op.takes_one, True).make_node(*node.inputs).outputs


for rewriter, position in ((go_on_behind, 50.7), (go_on_in_place, 50.8)):
    # Before PyTensor makes draws advance streams in place.
    optdb.register(
        f"synk_{rewriter.__name__}",
        dfs_rewriter(rewriter, ignore_newtrees=True),
        *("fast_run", "inplace"),
        position=position,
    )


def generator_in(kind: type[np.random.BitGenerator], state: Any) -> np.random.Generator:
    """Return a generator with a bit generator of a kind, in a state."""
    bits: Any = kind(0)  # with a seed, or it would read one from the system
    bits.state = state
    return np.random.Generator(bits)


def skip(rng: np.random.Generator, count: int) -> None:
    """Advance a generator by `count` doubles.

    Half of a 64-bit number, left over by a draw of 32 bits, stays for the next one.
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
    """Return whether draws are known to be 0 or 1: Bernoulli, or binomial of n = 1."""
    if not isinstance(draw, ptr.BinomialRV):
        return isinstance(draw, ptr.BernoulliRV)
    try:
        return bool(pt.get_underlying_scalar_constant_value(params[0]) == 1)
    except NotScalarConstantError:
        return False


def _takes_one(params: Sequence[Any]) -> bool:
    """Return whether NumPy takes one number of the stream for each Bernoulli draw.

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

# First keys of derived streams. A user's own children of a seed have other keys.
RANK, ROWS, SLICE = 0x73796E6B, 0x726F7773, 0x736C6963


def derived(generator: np.random.Generator, *key: int) -> np.random.Generator:
    """Return a new stream that follows from a generator's state and a key.

    It is a child of a ``SeedSequence``, as of ``SeedSequence.spawn``: independent of
    those with other keys, and the same in every run. The generator does not change.
    """
    # From the state, not the seed: after some draws, or in a second session, ranks must
    # get new numbers, as the master does.
    draws = copy.deepcopy(generator).integers(0, 2**32, 8, dtype=np.uint64)
    parent = np.random.SeedSequence([int(draw) for draw in draws])
    child = np.random.SeedSequence(parent.entropy, spawn_key=key)
    return np.random.Generator(type(generator.bit_generator)(child))
