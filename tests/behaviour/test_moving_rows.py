"""Functions whose arguments choose rows of shared data, as scripts of Theano's time."""

import numpy as np
import psutil
import pytensor
import pytensor.tensor as pt
import pytest
from processes import all_pids

import synk

FAST = pytensor.config.change_flags(mode="FAST_COMPILE", cxx="")
ROWS = 1005
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(ROWS, 5))
LABELS = RNG.integers(3, size=ROWS)
ORDER = RNG.permutation(ROWS)


class Script:
    """A model and its data, as such scripts have them."""

    def __init__(self, function):
        self.function = function
        self.images = pytensor.shared(IMAGES, "images")
        self.scores = pytensor.shared(LABELS.astype(float), "scores")
        self.labels = pt.cast(self.scores, "int32")
        self.order = pytensor.shared(ORDER, "order")
        self.w = pytensor.shared(np.zeros((5, 3)), "w")
        self.index, self.rate = pt.lscalar("index"), pt.dscalar("rate")
        self.x, self.y = pt.matrix("x"), pt.ivector("y")
        p = pt.special.softmax(self.x @ self.w, axis=1)
        self.cost = -pt.log(p)[pt.arange(self.y.shape[0]), self.y].mean()
        self.hits = pt.eq(p.argmax(axis=1), self.y)

    def train(self, inputs, images, labels, **options):
        step = self.w - self.rate * pt.grad(self.cost, self.w)
        return self.function(
            inputs,
            [self.cost, self.hits],
            updates=[(self.w, step)],
            givens={self.x: images, self.y: labels},
            **options,
        )


def by_number(s):
    rows = slice(s.index * 100, (s.index + 1) * 100)
    f = s.train([s.index, s.rate], s.images[rows], s.labels[rows])
    return f, f


def by_ends(s):
    start, stop = pt.lscalar("start"), pt.lscalar("stop")
    given = s.images[start:stop], s.labels[start:stop]
    f = s.train([start, s.rate, stop], *given)
    return f, lambda i, rate: f(i * 100, rate, i * 100 + 100)


def by_numbers(s):
    rows = pt.lvector("rows")
    f = s.train([rows, s.rate], s.images[rows], s.labels[rows])
    return f, lambda i, rate: f(ORDER[i * 100 : i * 100 + 100], rate)


def by_order(s):
    rows = s.order[s.index * 100 : (s.index + 1) * 100]
    f = s.train([s.index, s.rate], s.images[rows], s.labels[rows])
    return f, f


def by_order_that_is_given(s):
    order = pt.lvector("order")
    rows = order[s.index * 100 : (s.index + 1) * 100]
    f = s.train([s.index, s.rate, order], s.images[rows], s.labels[rows])
    return f, lambda i, rate: f(i, rate, ORDER)


def of_scaled_columns(s):
    images = ((s.images / s.images.shape[0])[:, ::-1] + 1.0).dimshuffle(0, 1)
    rows = slice(s.index * 100, (s.index + 1) * 100)
    f = s.train([s.index, s.rate], images[rows], s.labels[rows])
    return f, f


def labels_a_row_behind(s):
    a, b = s.index * 100, s.index * 100 + 100
    f = s.train([s.index, s.rate], s.images[a:b], s.labels[a + 1 : b + 1])
    return f, f


def with_a_mean_of_other_rows(s):
    a = s.index * 100
    images = s.images[a : a + 100] - s.images[a : a + 30].mean(axis=0)
    f = s.train([s.index, s.rate], images, s.labels[a : a + 100])
    return f, f


def sorted_columns(s):
    a = s.index * 100
    images = pt.sort(s.images[a : a + 100], axis=0)
    f = s.train([s.index, s.rate], images, s.labels[a : a + 100])
    return f, f


BY_ROWS = (
    by_number,
    by_ends,
    by_numbers,
    by_order,
    by_order_that_is_given,
    of_scaled_columns,
    labels_a_row_behind,
)
"""Here ranks share the rows."""

WHOLE = with_a_mean_of_other_rows, sorted_columns
"""Here each computes from all of them: as many are not chosen of all, or all are needed
at once."""


def made(idiom):
    """Return what calls it by plain PyTensor and by synk, and their scripts."""
    scripts = Script(pytensor.function), Script(synk.function)
    return [idiom(script)[1] for script in scripts], scripts


@pytest.mark.parametrize("idiom", [*BY_ROWS, *WHOLE])
@FAST
def test_costs_and_weights_are_those_of_the_serial_script(idiom):
    serial, script = Script(pytensor.function), Script(synk.function)
    (_, plain), (f, ours) = idiom(serial), idiom(script)
    with synk.session(3):
        for i in [*range(9), 3, 3]:
            for found, right in zip(ours(i, 0.5), plain(i, 0.5), strict=True):
                np.testing.assert_allclose(found, right, rtol=1e-12)
        weights, explained = synk.gather(script.w), f.explain()
    for of_rank in weights:
        np.testing.assert_allclose(of_rank, serial.w.get_value(), rtol=1e-10)
    if idiom in BY_ROWS:
        assert "rows of images" in str(explained)
        by_rank = explained.to_dict()["calls"]["ranks"]
        assert [row["share"] for row in by_rank] == [34, 33, 33]


@FAST
def test_what_the_script_sets_is_what_rows_are_taken_of():
    (plain, ours), (serial, script) = made(by_number)
    negate = [
        pytensor.function([], updates={s.images: -s.images}) for s in (serial, script)
    ]
    with synk.session(2):
        ours(0, 0.5), plain(0, 0.5)
        for s in (serial, script):
            s.images.set_value(2 * IMAGES[::-1])
        np.testing.assert_allclose(ours(1, 0.5)[0], plain(1, 0.5)[0], rtol=1e-12)
        for function in negate:  # which may write over the array
            function()
        np.testing.assert_allclose(ours(1, 0.5)[0], plain(1, 0.5)[0], rtol=1e-12)
        for s in (serial, script):
            s.images.set_value(IMAGES[:150])
        np.testing.assert_allclose(ours(0, 0.5)[0], plain(0, 0.5)[0], rtol=1e-12)
    np.testing.assert_array_equal(script.images.get_value(), IMAGES[:150])


@FAST
def test_a_run_is_of_the_numbers_of_batches():
    (plain, ours), _ = made(by_number)
    (other, in_two_ways), _ = made(labels_a_row_behind)
    with synk.session(2):
        shifted = in_two_ways.run([0, 4], 0.5)[0]
        costs, hits = ours.run(range(10), 0.5)
        more = ours.run((i for i in (3, 10)), rate=0.5, output_subset=[0])
        assert len(ours(10, 0.0)[1]) == 5  # as short as the data ends
    right = [plain(i, 0.5) for i in (*range(10), 3, 10)]
    np.testing.assert_allclose([*costs, *more[0]], [r[0] for r in right], rtol=1e-11)
    np.testing.assert_array_equal(hits, [r[1] for r in right[:10]])
    np.testing.assert_allclose(shifted, [other(i, 0.5)[0] for i in (0, 4)], rtol=1e-12)


@FAST
def test_slices_subsets_names_and_the_plain_run():
    (plain, ours), (serial, script) = made(by_number)
    with synk.session(2):
        in_slices = ours(2, rate=0.5, num_slices=3)[0]
        (hits,) = ours(rate=0.5, index=3, output_subset=[1])
        alone = ours.as_theano(4, 0.5)[0]
    right = [plain(i, 0.5) for i in (2, 3, 4)]
    np.testing.assert_allclose(
        [in_slices, alone], [right[0][0], right[2][0]], rtol=1e-12
    )
    np.testing.assert_array_equal(hits, right[1][1])
    np.testing.assert_allclose(script.w.get_value(), serial.w.get_value(), rtol=1e-11)


@FAST
def test_arguments_that_choose_no_rows_are_errors_of_the_script():
    (_, by_index), _ = made(by_number)
    (_, by_rows), _ = made(by_numbers)
    x, i, data = pt.vector("x"), pt.lscalar("i"), pytensor.shared(np.ones(10))
    three = synk.function([i], x.reshape((3, 1)), givens={x: data[3 * i : 3 * i + 3]})
    with synk.session(2):
        with pytest.raises(AssertionError, match="shape"):  # a last batch of 1 row
            three.run([0, 3])
        with pytest.raises(ValueError, match="the arguments choose the rows"):
            by_index(0, 0.5, batch=3)
        with pytest.raises(TypeError, match="index"):
            by_index(0.5, 0.5)
        with pytest.raises(TypeError, match="takes 2 arguments"):
            by_index(0, 0.5, 1)
        with pytest.raises(ValueError, match="a value for index"):
            by_index.run([(1, 2)], 0.5)
        assert by_rows(0, 0.5)


@FAST
def test_data_that_the_script_has_scattered_lie_where_they_are():
    (plain, ours), (_, script) = made(by_number)
    right = [plain(i, 0.5)[0] for i in (1, 1, 2)]
    with synk.session(2):
        assert synk.state(script.images).startswith("replicated")
        costs = [ours(1, 0.5)[0]]
        synk.scatter(script.images, IMAGES)
        costs += [ours(1, 0.5)[0]]
        assert synk.state(script.images).startswith("sharded")
        script.images.set_value(IMAGES)
        costs += [ours(2, 0.5)[0]]
    np.testing.assert_allclose(costs, right, rtol=1e-12)


@FAST
def test_data_lies_in_memory_once():
    def held():
        return sum(psutil.Process(pid).memory_full_info().pss for pid in all_pids())

    index = pt.lscalar("index")
    with synk.session(2):
        data = pytensor.shared(np.ones((8_000_000, 2)), "data", borrow=True)
        f = synk.function([index], data[index * 1000 : (index + 1) * 1000].sum())
        before = held()
        assert [f(i) for i in (3, 7999, 8000)] == [2000, 2000, 0]
        assert held() - before < 64e6  # of 128e6
    np.testing.assert_array_equal(data.get_value()[-1], [1, 1])
