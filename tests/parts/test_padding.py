"""Graphs for more rows than are real: the copies count for nothing.

The rewritten graphs are compiled like any other, and given rubbish in the place of the
copies, such as NaN. They give what plain PyTensor gives for the real rows.
"""

import contextlib
import functools
import re
import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from padding_cases import CASES, inputs, rows
from proof_corpus import INPUTS, accepted
from proof_corpus import values_of as corpus_rows
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import DenseTensorType
from random_equations import close
from random_graphs import Graph, is_empty
from random_loops import seeded
from reference import PY

import synk
from synk.compiler.arguments import FunctionArguments, make_spec
from synk.compiler.padded import CannotPad, Padder
from synk.compiler.stages import uncut
from synk.programs.padding import UNPADDED, PaddedSize, Padding, cut, widened

ROOMS = [PaddedSize(5, 5), PaddedSize(5, 4), PaddedSize(6, 3), PaddedSize(2, 1)]


@pytest.fixture(autouse=True, scope="module")
def python_linker():
    """Have scans, and Ops that are graphs, run by Python: neither numba nor C."""
    flags = {"mode": "FAST_COMPILE", "linker": "py", "cxx": "", "traceback__limit": 0}
    with pytensor.config.change_flags(**flags):
        yield


def spec_of(variables, outputs):
    outputs = [(output, None) for output in outputs]
    unused = {"on_unused_input": "ignore"}
    written = FunctionArguments(
        inputs=variables, outputs=outputs, mode=PY, options=unused
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", synk.SplitWarning)
        return make_spec(written)


class Compiled:
    """Plain and padded functions of a graph."""

    def __init__(self, variables, outputs):
        spec = spec_of(variables, outputs)
        self.padding = Padding(spec)
        assert self.padding.reason is None, self.padding.reason
        self.outputs = list(dict.fromkeys(spec.outputs))
        piece = uncut(spec, range(len(spec.outputs))).stages[0].merged
        receives, graph = self.padding.rewritten(piece, {}, [])
        options = {"mode": PY, "on_unused_input": "ignore"}
        self.plain = pytensor.function(spec.inputs, self.outputs, **options)
        self.padded = pytensor.function([*spec.inputs, *receives], graph, **options)

    def check(self, arrays, size, rubbish=np.nan):
        room = PaddedSize(size, len(arrays[0]))
        wide = [filled(array, room, rubbish) for array in arrays]
        found, expected = self.padded(*wide, np.asarray(room.real)), self.plain(*arrays)
        for var, value, right in zip(self.outputs, found, expected, strict=True):
            value = self.padding.cut(var, value, room)
            assert value.dtype == right.dtype
            np.testing.assert_allclose(value, right, 1e-9, 1e-12, err_msg=str(var))


def filled(array: np.ndarray, room: PaddedSize, rubbish: float = 777.0) -> np.ndarray:
    """Fill up with what is not to be seen; with the last row, where it is an index."""
    last = rubbish if array.dtype.kind == "f" else array[-1]
    more = np.full((room.rows - room.real, *array.shape[1:]), last, array.dtype)
    return np.concatenate([array, more])


@functools.cache
def compiled(name):
    variables = inputs()
    return Compiled(variables, CASES[name](*variables))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:invalid value", "ignore:All-NaN")
def test_padded_numbers_are_the_plain_ones_whatever_is_in_the_place_of_copies(name):
    for real, size in (5, 8), (1, 4), (6, 6), (7, 9):
        for rubbish in (np.nan, np.inf, 1e300):
            with np.errstate(all="ignore"):
                compiled(name).check(rows(real, size), size, rubbish)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["statistics", "perceptron", "batch_norm"])
def test_nan_and_infinity_in_real_rows_have_their_effect(name, special):
    arrays = rows(4)
    arrays[0][2, 1] = special
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        compiled(name).check(arrays, 7)


def test_an_infinite_row_does_not_turn_to_nan_beside_the_copies():
    """Zero times infinity is NaN: both factors of a product are replaced."""
    x, y = pt.matrix("x"), pt.matrix("y")
    graph = Compiled([x, y], [x.T @ y, (x.T @ y).sum()])
    graph.check([np.array([[1.0], [np.inf]]), np.ones((2, 1))], 4, np.inf)


x, y = pt.matrix("x"), pt.lvector("y")
shared = pytensor.shared(np.ones((5, 4)), name="shared")
stream = pytensor.shared(np.random.default_rng(0), name="stream")


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        (pt.sort(x, axis=0), "SortOp.* goes along the rows"),
        (x @ x.T, "pairs every row with every other row"),
        (x[::-1], "takes some of the rows"),
        (x[-1], "takes some of the rows"),
        (x[y], "takes some of the rows"),
        (pt.concatenate([x, x]), "joins along the rows: .* would be mingled"),
        (x + shared, "meets the rows with shared"),
        (shared[: x.shape[0]], "takes as an index the number of rows"),
        (shared[x.shape[0] - 1], "gives a length that may follow"),
        (pt.set_subtensor(shared[y], 0.0), "the last of the rows win"),
        (pt.eye(x.shape[0]), "Eye.* takes a number that follows from that of the rows"),
        (pt.zeros(x.shape[0] + 1), "gives a length that may follow"),
        (pt.zeros((x.shape[0], x.shape[0])), "the square of the rows"),
        (pt.arange(1, x.shape[0]), "ARange.* starts again on every rank"),
        (pt.zeros(x.shape[0] // 2), "gives a length that may follow"),
        (y.reshape((-1, 2)), "needs a number of rows that ranks may not have"),
        (x.reshape((4, -1)), "does not follow theirs|lie elsewhere"),
        (x.T.reshape((x.shape[0], x.shape[1])), "lie elsewhere"),
        (pt.linalg.inv(x), "is not known to work row by row|works on all rows"),
        (synk.ops.all_reduce(x), "AllReduce.* has a value for each row"),
        (pt.random.poisson(1.0, size=x.shape, rng=stream), "may draw other numbers"),
        (x[(y > 0).nonzero()], "is not known to work row by row"),
    ],
    ids=str,
)
def test_what_is_not_known_to_be_safe_is_not_padded(graph, why):
    padding = Padding(spec_of([x, y], [graph]))
    assert padding.reason is not None
    assert re.search(why, padding.reason), padding.reason


def test_sizes_are_those_compiled_before_and_stay_the_same():
    padding = Padding(spec_of([x], [x.sum()]))

    def padded_size(n):
        return padding.padded_size([slice(3, 3 + n)]).rows

    found = [padded_size(n) for n in (20, 20, 13, 10, 9, 7, 5, 21, 30, 12)]
    assert found == [20, 20, 20, 20, 9, 9, 9, 21, 30, 20]
    chosen = {n: padded_size(n) for n in range(1, 60)}
    assert all(n <= rows <= 2 * n for n, rows in chosen.items())
    assert {n: padded_size(n) for n in range(1, 60)} == chosen
    assert padding.padded_size([slice(4, 4)]) is UNPADDED
    assert padding.padded_size([slice(0, 4), np.arange(3)]) is UNPADDED
    # The last row is repeated.
    selections = [slice(3, 6), np.array([5, 1, 4])]
    found = widened(selections, PaddedSize(5, 3))
    np.testing.assert_array_equal(found, [[3, 4, 5, 5, 5], [5, 1, 4, 4, 4]])
    assert widened(selections, PaddedSize(3, 3)) is selections


# -- random graphs ---------------------------------------------------------------------


def padded(graph: Graph) -> tuple[Padder, list]:
    """Rewrite what can be rewritten; return it with the variables that could be."""
    padder = Padder(graph.inputs, pt.lscalar("real"))
    for term in graph.made:
        try:
            padder.walk([term.var])
        except CannotPad as error:
            if "could not be examined" in str(error):
                raise
    known = [
        var
        for var in ancestors([term.var for term in graph.made])
        if var in padder.new
        and var.owner is not None
        and isinstance(var.type, DenseTensorType)
        and not is_empty(var)
    ]
    return padder, known


def wrongs(padder, inputs, known, rooms, values, before=0, rubbish=777.0) -> list[str]:
    """Return which variables have other values for any numbers of rows."""
    options = {"mode": PY, "on_unused_input": "ignore"}
    plain = pytensor.function(inputs, known, **options)
    news = [padder.new[var] for var in known]
    wide = pytensor.function([*inputs, padder.real], news, **options)
    found = []
    for room in rooms:
        arrays = values(room.real)
        with np.errstate(all="ignore"):
            right = plain(*arrays)
            made = wide(*(filled(a, room, rubbish) for a in arrays), room.real)
        large = before or max(map(magnitude, right), default=0.0)
        for var, value, expected in zip(known, made, right, strict=True):
            state = padder.padded(var)
            value = value if state is None else cut(value, state, room)
            if not close(value, expected, magnitude(expected), large):
                found.append(f"{var} for {room}: {value} is not {expected}")
    return found


def magnitude(array: np.ndarray) -> float:
    """Return the largest finite magnitude."""
    array = np.abs(np.asarray(array, dtype="float64"))
    return float(array[np.isfinite(array)].max(initial=0))


@pytest.mark.parametrize(
    ("of", "seeds", "share"),
    [("rows", 24, 0.5), ("loops", 8, 0.3), ("counted", 8, 0.3)],
)
def test_what_is_padded_of_a_random_graph_is_what_it_was(of, seeds, share):
    made = done = 0
    for seed in range(seeds):
        graph = seeded(seed, of=of)
        padder, known = padded(graph)
        values = functools.partial(graph.values, seed=1)
        assert not wrongs(padder, graph.inputs, known, ROOMS, values), seed
        made += len(graph.made)
        done += sum(term.var in padder.new for term in graph.made)
    assert done > share * made


def test_what_people_write_is_padded_to_the_plain_numbers():
    """What the proof is shown to accept, but for random numbers and most gradients."""
    cases = [(name, var) for name, var, _ in accepted() if "draw" not in name]
    gradients = [case for case in cases if case[0].startswith("gradient of")]
    cases = [case for case in cases if case not in gradients] + gradients[::4]
    padder, kept = Padder(INPUTS, pt.lscalar("real")), []
    for _, var in cases:
        with contextlib.suppress(CannotPad):
            padder.walk([var])
            kept.append(var)
    assert len(kept) > 0.8 * len(cases)
    rooms = [PaddedSize(8, 5), PaddedSize(6, 6)]
    assert not wrongs(padder, INPUTS, kept, rooms, corpus_rows, 1, np.nan)
