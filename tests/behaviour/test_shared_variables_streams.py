"""Random streams: each rank has its own, and a run with the same seed repeats."""

from __future__ import annotations

import contextlib
import functools
import itertools

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from reference import PY, assert_same, cut

import synk

pytestmark = [
    pytest.mark.parametrize("ranks", [3], ids=["3ranks"], indirect=True),
    pytest.mark.filterwarnings("ignore:RandomStream is deprecated"),
    pytest.mark.filterwarnings("ignore:Setting default_update"),
    pytest.mark.filterwarnings("ignore:RandomVariable Ops will stop hiding"),
    pytest.mark.filterwarnings("ignore::FutureWarning:pytensor"),
]


def stream(seed: int = 3):
    """Return a shared generator that a function advances by itself."""
    return pytensor.shared(np.random.default_rng(seed), name="rng")


def normal(rng, size):
    """Return a draw from a shared generator; the generator moves on at every call."""
    draw = pt.random.normal(0, 1, size=size, rng=rng)
    rng.default_update = draw.owner.outputs[0]
    return draw


def draws_of_random_stream(seed, x):
    return pt.random.RandomStream(seed).normal(0, 1, size=x.shape), None


def draws_of_shared_generator(seed, x):
    return normal(stream(seed), x.shape), None


def draws_of_updates(seed, x):
    """The generator's next state among the user's own updates."""
    rng = stream(seed)
    draw = pt.random.normal(0, 1, size=x.shape, rng=rng)
    return draw, {rng: draw.owner.outputs[0]}


def draws_of_shared_rng(seed, x):
    """The API of PyTensor 3."""
    rng = pt.random.shared_rng(np.random.default_rng(seed))
    following, draw = rng.normal(0, 1, size=x.shape)
    return draw, {rng: following}


SOURCES = {
    "RandomStream": draws_of_random_stream,
    "default_update": draws_of_shared_generator,
    "updates": draws_of_updates,
}
if hasattr(pt.random, "shared_rng"):
    SOURCES["shared_rng"] = draws_of_shared_rng


def make(source, seed=3, function=synk.function, mode=PY):
    """Return a function of what is drawn for each row."""
    x = pt.matrix("x")
    draw, updates = SOURCES[source](seed, x)
    return function([x], draw + x, updates=updates, mode=mode)


def no_row_repeats(rows) -> bool:
    """Tell whether all rows differ from each other."""
    return len({row.tobytes() for row in rows}) == len(rows)


def test_ranks_draw_different_numbers_and_rank_0_those_of_the_serial_run(ranks):
    value = np.zeros((2 * ranks + 1, 4))
    own = len(cut(value, ranks)[0])
    for source in SOURCES:
        f, right = make(source), make(source, function=pytensor.function)
        drawn = [f(value) for _ in range(3)]
        assert no_row_repeats(np.concatenate(drawn))
        for rows in drawn:
            assert_same(rows[:own], right(value[:own]), 0)


def test_a_run_with_the_same_seed_repeats(ranks):
    value = np.zeros((7, 4))
    runs = []
    for seed in (3, 3, 4):
        with synk.session(ranks) if not synk.is_forked() else contextlib.nullcontext():
            functions = [make(source, seed) for source in SOURCES]
            runs.append([f(value) for f in functions for _ in range(2)])
        synk.close()
    for one, again, other in zip(*runs, strict=True):
        assert_same(one, again, 0)
        assert not np.isin(one, other).any()


def test_slices_draw_anew_where_a_stream_leads_through_a_reduction(ranks):
    rng, x = stream(), pt.vector("x")
    after, first = pt.random.normal(size=x.shape, rng=rng).owner.outputs
    far = 10 * first.max() + 100
    after, second = pt.random.normal(far, size=x.shape, rng=after).owner.outputs
    f = synk.function([x], [first, second - far], updates={rng: after}, mode=PY)
    value = np.zeros(4 * ranks)
    drawn = [f(value, num_slices=slices) for slices in (2, 1, 3)]
    drawn = np.concatenate(drawn, axis=None).round(9)
    assert len(set(drawn)) == drawn.size == 24 * ranks


def test_rows_and_slices_differ_without_an_update_and_calls_do_not(ranks):
    rng, x = stream(), pt.vector("x")
    draw = pt.random.normal(size=x.shape, rng=rng)
    f = synk.function([x], draw, mode=PY)
    value = np.zeros(2 * ranks + 1)
    for slices in (1, 2):
        first = f(value, num_slices=slices)
        assert len(set(first)) == len(first)
        assert_same(f(value, num_slices=slices), first, 0)


def test_dropout_masks_are_distinct_and_keep_the_rate(ranks):
    rng = stream(11)
    x = pt.matrix("x", dtype="float32")
    mask = pt.random.bernoulli(0.75, size=x.shape, rng=rng)
    rng.default_update = mask.owner.outputs[0]
    dropped = x * mask.astype("float32") / np.float32(0.75)
    f = synk.function([x], [(dropped, "gather"), dropped.mean()], mode=PY)
    value = np.ones((2 * ranks + 1, 400), "float32")
    masks = []
    for _ in range(3):
        rows, mean = f(value)
        assert rows.dtype == np.float32
        assert set(np.unique(rows)) == {np.float32(0), np.float32(1) / np.float32(0.75)}
        np.testing.assert_allclose(mean, rows.mean(dtype="float64"), 1e-6)
        masks.append(rows)
    masks = np.concatenate(masks)
    assert no_row_repeats(masks)
    # Six standard errors of the mean of as many coin tosses.
    assert abs((masks > 0).mean() - 0.75) < 6 * np.sqrt(0.75 * 0.25 / masks.size)
    # Nor are they alike otherwise: agreement of two masks by chance is 0.625.
    for one, other in itertools.combinations(masks > 0, 2):
        assert abs((one == other).mean() - 0.625) < 6 * np.sqrt(0.625 * 0.375 / 400)


def test_every_rank_goes_on_with_its_own_stream_in_all_functions(ranks):
    """The numbers of numpy's own generators, rank by rank and call by call."""
    rng = stream()
    x = pt.vector("x")
    draw = pt.random.normal(0, 1, size=x.shape, rng=rng)
    updates = {rng: draw.owner.outputs[0]}
    f = synk.function([x], (draw, "gather"), updates=updates, mode=PY)
    g = synk.function([x], (draw * 10, "gather"), updates=updates, mode=PY)
    synk.broadcast(rng)
    generators = [synk.get_value(rank, rng) for rank in range(ranks)]
    value = np.zeros(2 * ranks + 1)
    for function, factor in ((f, 1), (g, 10), (g, 10), (f, 1)):
        right = [
            generator.normal(size=len(part)) * factor
            for generator, part in zip(generators, cut(value, ranks), strict=True)
        ]
        assert_same(function(value), np.concatenate(right), 2)


def test_a_generator_can_be_seeded_anew_for_all_ranks_or_one(ranks):
    rng = stream(1)
    x = pt.vector("x")
    f = synk.function([x], (normal(rng, x.shape), "gather"), mode=PY)
    value = np.zeros(2 * ranks + 1)
    first, second = f(value), f(value)
    for seed_anew in (rng.set_value, functools.partial(synk.broadcast, rng)):
        seed_anew(np.random.default_rng(1))
        assert_same(f(value), first, 0)
        assert_same(f(value), second, 0)
        seed_anew(np.random.default_rng(2))
        third = f(value)
        assert not np.isin(third, [first, second]).any()
        assert len(set(third)) == third.size
    rng.set_value(np.random.default_rng(1))
    synk.set_value(1, rng, np.random.default_rng(42))
    drawn = f(np.zeros(2 * ranks))
    assert_same(drawn[2:4], np.random.default_rng(42).normal(size=2), 0)
    assert_same(drawn[:2], np.random.default_rng(1).normal(size=2), 0)


def test_a_stream_follows_the_size_of_sliceable_rows(ranks):
    source = pt.random.RandomStream(3)
    s = pytensor.shared(np.zeros(2 * ranks))
    noisy = s + source.normal(size=s.shape)
    f = synk.function([], (noisy, "gather"), sliceable_shareds=[s], mode=PY)
    drawn = np.concatenate([f(), f(batch_s=slice(1)), f(num_slices=2)])
    assert len(drawn) == ranks * (2 * ranks + 1 + 2 * ranks)
    assert len(set(drawn)) == drawn.size


def test_a_second_session_draws_new_numbers(ranks):
    """The master's generator goes on, so must those of the other ranks."""
    rng, value = stream(1), np.zeros(7)
    x = pt.vector("x")
    f = synk.function([x], (normal(rng, x.shape), "gather"), mode=PY)
    drawn = []
    for _ in range(3):
        if not synk.is_forked():
            synk.fork(ranks)
        drawn += list(f(value))
        synk.broadcast(rng)
        drawn += list(f(value))
        synk.close()
    assert len(set(drawn)) == len(drawn)
    # One stream over all slices: on one rank, the numbers of the serial run.
    with synk.session(1):
        whole, sliced = make("default_update"), make("default_update")
        rows = np.zeros((7, 4))
        for slices in (3, 2, 7):
            assert_same(sliced(rows, num_slices=slices), whole(rows), 0)


def test_streams_work_in_the_default_mode(ranks):
    f = make("default_update", mode=None)
    value = np.zeros((4 * ranks + 1, 2))
    drawn = [f(value, num_slices=slices) for slices in (1, 2, 3)]
    assert no_row_repeats(np.concatenate(drawn))
