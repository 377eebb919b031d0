"""Random streams: each rank has its own, and a run with the same seed repeats."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from reference import PY, assert_same, cut
from world_sizes import one_and_three_ranks

import synk
from synk.ranks.streams import value_for_rank

pytestmark = [
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
    source = pt.random.RandomStream(seed)
    return source.normal(0, 1, size=x.shape)


def draws_of_shared_generator(seed, x):
    return normal(stream(seed), x.shape)


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


def make(source, seed=3, **options):
    """Return a synk function and PyTensor's, of what is drawn for each row."""
    x = pt.matrix("x")
    made = SOURCES[source](seed, x)
    draw, updates = made if isinstance(made, tuple) else (made, None)
    options = {"updates": updates, "mode": PY, **options}
    return synk.function([x], (draw + x, "gather"), **options)


def plain(source, seed=3):
    x = pt.matrix("x")
    made = SOURCES[source](seed, x)
    draw, updates = made if isinstance(made, tuple) else (made, None)
    return pytensor.function([x], draw + x, updates=updates, mode=PY)


def no_row_repeats(rows) -> bool:
    """Tell whether all rows differ from each other."""
    return len({row.tobytes() for row in rows}) == len(rows)


@one_and_three_ranks
@pytest.mark.parametrize("source", SOURCES)
def test_ranks_draw_different_numbers(ranks, source):
    f = make(source)
    value = np.zeros((2 * ranks + 1, 4))
    drawn = np.concatenate([f(value) for _ in range(3)])
    assert no_row_repeats(drawn)


@pytest.mark.parametrize("source", SOURCES)
def test_a_run_with_the_same_seed_repeats(source):
    value = np.zeros((7, 4))
    runs = []
    for seed in (3, 3, 4):
        f = make(source, seed)
        with synk.session(3):
            runs.append([f(value) for _ in range(2)])
    for one, again, other in zip(*runs, strict=True):
        assert_same(one, again, 0)
        assert not np.isin(one, other).any()


@one_and_three_ranks
@pytest.mark.parametrize("source", SOURCES)
def test_rank_0_draws_what_the_serial_run_draws(ranks, source):
    f, right = make(source), plain(source)
    value = np.zeros((2 * ranks + 1, 4))
    own = len(cut(value, ranks)[0])
    for _ in range(3):
        assert_same(f(value)[:own], right(value[:own]), 0)


@one_and_three_ranks
def test_every_rank_goes_on_with_its_own_stream(ranks):
    """The numbers of numpy's own generators, rank by rank and call by call."""
    rng = stream()
    x = pt.vector("x")
    f = synk.function([x], (normal(rng, x.shape), "gather"), mode=PY)
    synk.broadcast(rng)
    generators = [synk.get_value(rank, rng) for rank in range(ranks)]
    value = np.zeros(2 * ranks + 1)
    for _ in range(3):
        right = [
            generator.normal(size=len(part))
            for generator, part in zip(generators, cut(value, ranks), strict=True)
        ]
        assert_same(f(value), np.concatenate(right), 0)


@one_and_three_ranks
def test_masks_differ_between_slices(ranks):
    f = make("default_update")
    value = np.zeros((4 * ranks + 1, 4))
    drawn = [f(value, num_slices=slices) for slices in (1, 2, 3)]
    assert no_row_repeats(np.concatenate(drawn))


def test_slices_draw_on_from_where_the_last_ended():
    """One stream over all slices: on one rank, the numbers of the serial run."""
    with synk.session(1):
        whole, sliced = make("default_update"), make("default_update")
        value = np.zeros((7, 4))
        for slices in (3, 2, 7):
            assert_same(sliced(value, num_slices=slices), whole(value), 0)


@one_and_three_ranks
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


@one_and_three_ranks
def test_slices_differ_without_an_update_and_calls_do_not(ranks):
    rng, x = stream(), pt.vector("x")
    draw = pt.random.normal(size=x.shape, rng=rng)
    f = synk.function([x], draw, mode=PY)
    value = np.zeros(2 * ranks + 1)
    first = f(value, num_slices=2)
    assert len(set(first)) == len(first)
    assert_same(f(value, num_slices=2), first, 0)


@one_and_three_ranks
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


@one_and_three_ranks
def test_functions_that_share_a_generator_draw_from_one_stream(ranks):
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


@one_and_three_ranks
def test_without_an_update_every_call_draws_the_same(ranks):
    rng = stream()
    x = pt.vector("x")
    draw = pt.random.normal(0, 1, size=x.shape, rng=rng)
    f = synk.function([x], (draw, "gather"), mode=PY)
    value = np.zeros(ranks + 2)
    first = f(value)
    assert_same(f(value), first, 0)
    assert len(set(first)) == len(first)


@one_and_three_ranks
def test_several_draws_from_one_source_differ(ranks):
    source = pt.random.RandomStream(5)
    x = pt.vector("x")
    outputs = [(source.normal(size=x.shape), "gather") for _ in range(3)]
    f = synk.function([x], outputs, mode=PY)
    value = np.zeros(2 * ranks + 1)
    drawn = np.concatenate([*f(value), *f(value)])
    assert len(set(drawn)) == drawn.size


@one_and_three_ranks
def test_a_generator_can_be_seeded_anew_for_all_ranks(ranks):
    rng = stream(1)
    x = pt.vector("x")
    f = synk.function([x], (normal(rng, x.shape), "gather"), mode=PY)
    value = np.zeros(2 * ranks + 1)
    first, second = f(value), f(value)
    synk.broadcast(rng, np.random.default_rng(1))
    assert_same(f(value), first, 0)
    assert_same(f(value), second, 0)
    rng.set_value(np.random.default_rng(2))
    synk.broadcast(rng)
    third = f(value)
    assert not np.isin(third, [first, second]).any()
    assert len(set(third)) == third.size


def test_a_generator_can_be_set_on_one_rank(two_ranks):
    rng = stream(1)
    x = pt.vector("x")
    f = synk.function([x], (normal(rng, x.shape), "gather"), mode=PY)
    synk.set_value(1, rng, np.random.default_rng(42))
    drawn = f(np.zeros(4))
    assert_same(drawn[2:], np.random.default_rng(42).normal(size=2), 0)
    assert_same(drawn[:2], np.random.default_rng(1).normal(size=2), 0)


@one_and_three_ranks
def test_a_stream_with_givens_and_slices_is_the_users(ranks):
    """The classical dropout: the size of the mask comes through givens."""
    source = pt.random.RandomStream(3)
    x, i = pt.matrix("x"), pt.lvector("i")
    X = pytensor.shared(np.arange(20.0).reshape(10, 2))
    noisy = x + source.normal(size=x.shape)
    f = synk.function([i], (noisy, "gather"), givens={x: X[i]}, mode=PY)
    right = pytensor.function([i], noisy, givens={x: X[i]}, mode=PY)
    rows = np.arange(2 * ranks - 1) % 10
    own = len(cut(rows, ranks)[0])
    # The plain function advances the same generator: let it go second.
    start = pickle.dumps(source.state_updates[0][0].get_value())
    drawn = [f(rows) for _ in range(2)]
    source.state_updates[0][0].set_value(pickle.loads(start))
    for got in drawn:
        assert_same(got[:own], right(rows[:own]), 0)
    noise = np.concatenate(drawn) - X.get_value()[np.tile(rows, 2)]
    assert no_row_repeats(noise.round(9))


@one_and_three_ranks
def test_a_stream_follows_the_size_of_sliceable_rows(ranks):
    source = pt.random.RandomStream(3)
    s = pytensor.shared(np.zeros(2 * ranks))
    noisy = s + source.normal(size=s.shape)
    f = synk.function([], (noisy, "gather"), sliceable_shareds=[s], mode=PY)
    drawn = np.concatenate([f(), f(batch_s=slice(1)), f(num_slices=2)])
    assert len(drawn) == ranks * (2 * ranks + 1 + 2 * ranks)
    assert len(set(drawn)) == drawn.size


def test_a_second_session_draws_new_numbers():
    """The master's generator goes on, so must those of the other ranks."""
    rng = stream(1)
    x = pt.vector("x")
    f = synk.function([x], (normal(rng, x.shape), "gather"), mode=PY)
    drawn = []
    for _ in range(3):
        with synk.session(3):
            drawn += list(f(np.zeros(7)))
            synk.broadcast(rng)
            drawn += list(f(np.zeros(7)))
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("mode", [None, "FAST_COMPILE"])
def test_streams_work_in_compiled_modes(two_ranks, mode):
    f = make("default_update", mode=mode)
    value = np.zeros((5, 2))
    drawn = np.concatenate([f(value), f(value, num_slices=2)])
    assert no_row_repeats(drawn)


# -- a generator for each rank ---------------------------------------------------------


BIT_GENERATORS = [np.random.PCG64, np.random.Philox, np.random.MT19937, np.random.SFC64]


@pytest.mark.parametrize("kind", BIT_GENERATORS, ids=lambda kind: kind.__name__)
def test_the_kind_of_generator_is_kept_on_every_rank(kind):
    original = np.random.Generator(kind(7))
    for rank in range(3):
        own = value_for_rank(original, rank)
        assert type(own.bit_generator) is kind
    assert value_for_rank(original, 0) is original


def test_streams_of_ranks_are_neither_each_others_nor_a_users_children():
    sequence = np.random.SeedSequence(7)
    original = np.random.default_rng(sequence)
    streams = [value_for_rank(original, rank) for rank in range(1, 40)]
    streams += [np.random.default_rng(child) for child in sequence.spawn(40)]
    streams += [value_for_rank(np.random.default_rng(8), rank) for rank in range(1, 40)]
    streams.append(np.random.default_rng(7))
    first = [generator.integers(2**63) for generator in streams]
    assert len(set(first)) == len(first)


class Entropy(np.random.bit_generator.ISeedSequence):
    """Something that seeds a generator and has no children."""

    def generate_state(self, n_words, dtype=np.uint32):
        return np.arange(5, 5 + n_words).astype(dtype)


def test_a_generator_without_a_seed_sequence_has_ranks_too():
    def original():
        return np.random.Generator(np.random.PCG64(Entropy()))

    first = [value_for_rank(original(), r).integers(2**63) for r in (0, 1, 2, 1)]
    assert first[0] == original().integers(2**63)
    assert first[1] == first[3]
    assert len(set(first)) == 3


def test_generators_in_the_same_state_have_the_same_ranks():
    """As after loading the state of a former run into a new generator."""
    state = np.random.default_rng(5).bit_generator.state
    first = []
    for _ in range(2):
        restored = np.random.default_rng()
        restored.bit_generator.state = state
        first.append([value_for_rank(restored, r).integers(2**63) for r in (0, 1, 2)])
    assert first[0] == first[1]
    assert len(set(first[0])) == 3


def test_making_a_ranks_generator_leaves_the_original_as_it_was():
    original = np.random.default_rng(5)
    value_for_rank(original, 1)
    assert original.integers(2**63) == np.random.default_rng(5).integers(2**63)


def test_values_that_are_no_generators_are_the_same_on_every_rank():
    value = np.arange(3)
    assert value_for_rank(value, 2) is value
