"""Training that goes on from a checkpoint: the bits of the run that never stopped."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from reference import PY, assert_same

import synk

pytestmark = [
    pytest.mark.filterwarnings("ignore:Setting default_update"),
    pytest.mark.filterwarnings("ignore:RandomVariable Ops will stop hiding"),
    pytest.mark.filterwarnings("ignore::FutureWarning:pytensor"),
]

IN_PLACE = Mode("py", "fast_run")
STEPS, STOP = 6, 3
KINDS = ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"]


def rows():
    random = np.random.default_rng(5)
    return random.normal(size=(STEPS, 7, 3)), random.normal(size=(STEPS, 7))


def build(seed: int, kind: str = "PCG64", mode: Mode = PY):
    """Return a step with noise and Adam, and all variables that it updates."""
    x, y = pt.matrix("x"), pt.vector("y")
    start = np.random.default_rng(seed)
    w = pytensor.shared(start.normal(size=(3, 2)), "w")
    b = pytensor.shared(start.normal(size=2).astype("float32"), "b")
    bits = getattr(np.random, kind)(seed)
    rng = pytensor.shared(np.random.Generator(bits), "rng")
    noise = pt.random.normal(0, 1, size=x.shape, rng=rng)
    rng.default_update = noise.owner.outputs[0]
    loss = ((pt.tanh((x + noise) @ w + b).sum(axis=1) - y) ** 2).mean()
    updates = synk.updates.adam(loss, [w, b], learning_rate=0.1)
    step = synk.function([x, y], loss, updates=updates, mode=mode)
    assert step.updated == [*updates, rng]
    return step, [w, b], step.updated


def train(step, start: int, stop: int) -> list[np.ndarray]:
    X, Y = rows()
    return [step(X[i], Y[i], num_slices=1 + i % 2) for i in range(start, stop)]


def state_of(variables) -> list:
    """Return the values on every rank, generators by their states."""
    by_rank = [synk.get_value(rank, variables) for rank in range(synk.size())]
    return [
        value.bit_generator.state if isinstance(value, np.random.Generator) else value
        for values in by_rank
        for value in values
    ]


@pytest.mark.parametrize(
    ("n", "kind"), [(1, KINDS[0]), (3, KINDS[0]), *((2, kind) for kind in KINDS)]
)
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(tmp_path, n, kind):
    checkpoint = tmp_path / "training.npz"
    # To rewrite the graphs takes most of the time, and kinds make no difference there.
    mode = IN_PLACE if kind == KINDS[0] else PY
    with synk.session(n):
        step, _, variables = build(1, kind, mode)
        losses = train(step, 0, STOP)
        synk.save(checkpoint, variables)
        losses += train(step, STOP, STEPS)
        right = state_of(variables)
    with synk.session(n):
        step, _, variables = build(2, kind, mode)
        train(step, 0, 1)
        synk.load(checkpoint, variables)
        resumed = train(step, STOP, STEPS)
        state = state_of(variables)
    for got, loss in zip(resumed, losses[STOP:], strict=True):
        assert got == loss
    for got, value in zip(state, right, strict=True):
        np.testing.assert_equal(got, value)


def test_the_rules_state_and_the_streams_are_needed_for_that(checkpoint):
    """Without them the run goes on, and differs."""
    with synk.session(2):
        step, params, variables = build(1)
        train(step, 0, STOP)
        synk.save(checkpoint, variables)
        right = train(step, STOP, STEPS)
        for some in (params, variables[:-1], variables):
            step, *_ = other = build(1)
            named = {var.name: var for var in other[-1]}
            synk.load(checkpoint, [named[var.name] for var in some])
            assert (train(step, STOP, STEPS) == right) == (some is variables)


def test_on_another_number_of_ranks_streams_derive_from_that_of_rank_0(checkpoint):
    rng = pytensor.shared(np.random.default_rng(3), "rng")
    with synk.session(3):
        synk.broadcast(rng)
        synk.save(checkpoint, rng)
        three = [synk.get_value(rank, rng).random(4) for rank in range(3)]
        synk.broadcast(rng, np.random.default_rng(4))
        synk.load(checkpoint, rng)
        for rank, right in enumerate(three):
            assert_same(synk.get_value(rank, rng).random(4), right, 0)
    with synk.session(2):
        synk.broadcast(rng, np.random.default_rng(4))
        synk.load(checkpoint, rng)
        first, second = (synk.get_value(rank, rng).random(4) for rank in range(2))
    assert_same(first, three[0], 0)
    assert_same(second, three[1], 0)  # the same derivation as at the start
    synk.load(checkpoint, rng)
    assert_same(rng.get_value().random(4), three[0], 0)


def test_ranks_have_different_streams_after_loading_what_one_process_saved(checkpoint):
    rng = pytensor.shared(np.random.default_rng(3), "rng")
    synk.save(checkpoint, rng)
    with synk.session(3):
        synk.load(checkpoint, rng)
        draws = [synk.get_value(rank, rng).random() for rank in range(3)]
    assert len(set(draws)) == 3
    assert draws[0] == np.random.default_rng(3).random()


@pytest.mark.parametrize("kind", KINDS)
def test_a_generator_goes_on_where_it_was(checkpoint, kind):
    generator = np.random.Generator(getattr(np.random, kind)(3))
    generator.integers(0, 9, 3, dtype=np.uint32)  # half of a 64-bit draw is left
    rng = pytensor.shared(generator, "rng")
    synk.save(checkpoint, rng)
    rng.set_value(np.random.default_rng(1))
    synk.load(checkpoint, rng)
    loaded = rng.get_value()
    for draw in (
        lambda g: g.integers(0, 9, 3, dtype=np.uint32),
        lambda g: g.normal(size=100),
    ):
        np.testing.assert_array_equal(draw(loaded), draw(generator))


def test_a_generator_of_the_users_own_is_refused(checkpoint):
    class Mine(np.random.PCG64):
        pass

    rng = pytensor.shared(np.random.Generator(Mine(3)), "rng")
    with pytest.raises(TypeError, match=r"rng draws from Mine: only .*PCG64"):
        synk.save(checkpoint, rng)
    assert not checkpoint.exists()


@pytest.mark.parametrize(
    "states",
    [
        b"",
        b"[]",
        b"{}",
        b"[3]",
        b'[{"bit_generator": "Mine"}]',
        b'[{"bit_generator": "PCG64"}]',
        b'[{"bit_generator": "MT19937", "state": {"key": [], "pos": 0}}]',
        b'[{"bit_generator": "PCG64", "state": {"state": "x", "inc": 1}}]',
        b'[{"bit_generator": "PCG64", "state": {"state": -1, "inc": 1},'
        b' "has_uint32": 0, "uinteger": 0}]',
    ],
)
def test_a_state_that_is_none_is_an_error(tmp_path, states):
    checkpoint = tmp_path / "rng.npz"
    np.savez(checkpoint, **{"rng:bit_generators": np.frombuffer(states, np.uint8)})
    rng = pytensor.shared(np.random.default_rng(3), "rng")
    before = rng.get_value().bit_generator.state
    with pytest.raises(synk.CheckpointError, match="rng:bit_generators, uint8"):
        synk.load(checkpoint, rng)
    assert rng.get_value().bit_generator.state == before


def test_a_generator_and_a_tensor_are_not_taken_for_each_other(checkpoint):
    rng = pytensor.shared(np.random.default_rng(3), "a")
    tensor = pytensor.shared(np.zeros(3, "uint8"), "a")
    synk.save(checkpoint, rng)
    with pytest.raises(synk.CheckpointError, match="no value for a; it has a:bit"):
        synk.load(checkpoint, tensor)
    synk.save(checkpoint, tensor)
    with pytest.raises(synk.CheckpointError, match=r"no value for a:bit.*; it has a"):
        synk.load(checkpoint, rng)
