"""Parts that are sums over rows run in blocks of rows, where that was seen to win."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from reference import PY

import synk
from synk.engines import numba_blocks
from synk.programs import block_trial, blocks
from synk.programs.block_trial import TRIALS, Trial

ROWS, COLUMNS = 101, 3


@pytest.fixture(autouse=True)
def tried_on_few_rows(monkeypatch):
    """Have blocks of 5 rows tried, and taken."""
    monkeypatch.setattr(blocks, "is_to_repeat", lambda spec: False)
    monkeypatch.setattr(blocks, "FROM", 1)
    monkeypatch.setattr(blocks, "BYTES", 5 * 8 * COLUMNS)
    monkeypatch.setattr(block_trial, "GAIN", np.inf)
    # Whatever earlier tests have left.
    monkeypatch.setattr(numba_blocks.Loop, "is_on_disk", False)


X, Y = pt.matrix("X"), pt.vector("Y")
W = pt.vector("W")
ETA = X @ W
LOSS = ((Y - ETA) ** 2).mean()
GRADIENT = pt.grad(LOSS, W)
STREAM = pytensor.shared(np.random.default_rng(3))

IN_BLOCKS = {
    "a sum": [(Y * ETA - pt.exp(ETA)).sum()],
    "a mean with its gradient": [LOSS, GRADIENT],
    "a kept term": [(Y * ETA - pt.gammaln(Y + 1)).sum()],
    "kept terms along columns": [(ETA * (pt.gammaln(X + 9) * 2.0).T[0]).sum()],
    "a sum with a prior": [(Y * ETA).sum() - (W**2).sum()],
    "float32": [pt.cast(ETA, "float32").sum()],
    "a product": [X.T @ (Y - ETA)],
}
NOT = {
    "a maximum": [ETA.max()],
    "rows": [ETA * 2],
    "a sum and rows": [ETA.sum(), ETA * Y],
    "a sorted one": [pt.sort(ETA)[3:5].sum()],
    "sums about a mean": [((ETA - ETA.mean()) ** 2).mean()],
    "one's own statistics": [((ETA - synk.ops.local(ETA.mean())) ** 2).sum()],
}


def values():
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(ROWS, COLUMNS)), rng.poisson(3.0, ROWS).astype(float)
    return x, y, rng.normal(size=COLUMNS)


def trials_of(f):
    return list(f._engines.present.local().blocks.trials.values())


@pytest.mark.filterwarnings("ignore::synk.SplitWarning")
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_numbers_are_the_serial_ones(ranks, monkeypatch):
    monkeypatch.setattr("synk.call.repeats.WORTH", 1e-12)
    monkeypatch.setattr("synk.call.repeats.FEW", 0)
    x, y, w = values()
    with synk.session(ranks):
        data = synk.data(x), synk.data(y)
        for name, outputs in {**IN_BLOCKS, **NOT}.items():
            how = {"bcast_inputs": [W], "mode": PY, "on_unused_input": "ignore"}
            f = synk.function([X, Y], outputs, **how)
            plain = pytensor.function(
                [X, Y, W], outputs, mode=PY, on_unused_input="ignore"
            )
            if name == "one's own statistics" and ranks > 1:
                continue
            expected = plain(x, y, w)
            for _ in range(2 * TRIALS + 5):
                for mine, theirs in zip(f(*data, w), expected, strict=True):
                    assert mine.dtype == theirs.dtype
                    rtol = 1e-12 if mine.dtype == "float64" else 1e-6
                    np.testing.assert_allclose(mine, theirs, rtol, err_msg=name)
            chosen = [trial.chosen for trial in trials_of(f)]
            # On one rank a graph of several stages is run as it is.
            whole = ranks == 1 and "prior" in name
            in_blocks = name in IN_BLOCKS and not whole
            assert ("blocks" in chosen) == in_blocks, name
            if "kept" in name:
                assert f._engines.present.local().kept_terms.nbytes


def test_a_step_of_several_stages(two_ranks):
    w = pytensor.shared(np.zeros(COLUMNS), name="w")
    loss = ((Y - X @ w) ** 2).mean()
    step = synk.function([X, Y], loss, updates={w: w - 0.1 * pt.grad(loss, w)}, mode=PY)
    v = pytensor.shared(np.zeros(COLUMNS))
    other = ((Y - X @ v) ** 2).mean()
    plain = pytensor.function(
        [X, Y], other, updates={v: v - 0.1 * pt.grad(other, v)}, mode=PY
    )
    x, y, _ = values()
    for _ in range(2 * TRIALS + 3):
        np.testing.assert_allclose(step(x, y), plain(x, y), rtol=1e-12)
        np.testing.assert_allclose(w.get_value(), v.get_value(), rtol=1e-12)
    assert [trial.chosen for trial in trials_of(step)] == ["blocks"]


def test_what_is_drawn_is_drawn_once(two_ranks):
    noise = pytensor.shared(np.random.default_rng(3))
    after, drawn = pt.random.normal(size=Y.shape, rng=noise).owner.outputs
    f = synk.function([Y], (Y + drawn).sum(), updates={noise: after}, mode=PY)
    for _ in range(2 * TRIALS + 3):
        f(values()[1])
    assert not trials_of(f)


def test_slices_that_are_asked_for_stay(two_ranks):
    x, y, w = values()
    f = synk.function([X, Y], [LOSS], bcast_inputs=[W], mode=PY)
    for _ in range(3):
        f(x, y, w, num_slices=4)
    assert not trials_of(f)


@pytest.fixture
def two_ranks():
    with synk.session(2):
        yield


@pytest.mark.parametrize(
    ("whole", "cut", "chosen"), [(9, 5, "blocks"), (9, 8.9, "whole"), (5, 9, "whole")]
)
def test_the_faster_way_is_taken(monkeypatch, whole, cut, chosen):
    monkeypatch.setattr(block_trial, "GAIN", 0.95)
    trial = Trial(8)
    tried = []
    while trial.chosen is None:
        tried.append(trial.next())
        trial.took(tried[-1], {"whole": whole, "blocks": cut}[tried[-1]])
    assert tried == ["whole", "blocks"] * TRIALS
    assert trial.chosen == trial.next() == chosen


@pytest.mark.parametrize(("whole", "loop", "chosen"), [(4, 3, "loop"), (2, 3, "whole")])
def test_a_loop_is_compiled_after_calls_of_as_much_time(
    monkeypatch, whole, loop, chosen
):
    monkeypatch.setattr(block_trial, "GAIN", 0.95)
    taken = {"whole": whole * 1e-3, "blocks": 5e-3, "loop": loop * 1e-3}
    trial, ways = Trial(8, can_loop=True), []
    for _ in range(2000):
        ways.append(trial.next())
        compiling = 1.0 if ways.count("loop") == 1 and ways[-1] == "loop" else 0.0
        trial.took(ways[-1], taken[ways[-1]] + compiling)
    begun = ways.index("loop")
    assert begun == {4: 256, 2: 512}[whole]  # powers of 2, which ranks have alike
    assert set(ways[2 * TRIALS : begun]) == {"whole"}
    assert ways[begun:][: 3 * TRIALS] == ["loop", "whole", "blocks"] * TRIALS
    assert set(ways[begun + 3 * TRIALS :]) == {chosen}
    assert not trial.can_loop


def test_a_loop_is_tried_at_once_where_engines_are_compared():
    x, y, w = values()
    of_first_call = []
    for is_compared in (False, True):
        f = synk.function([X, Y], [LOSS], bcast_inputs=[W], mode="NUMBA")
        f._engines.present._spec.is_compared = is_compared
        with synk.session(2):
            f(x, y, w)
            (trial,) = trials_of(f)
            of_first_call.append(("loop" in trial.seconds, trial.can_loop))
            np.testing.assert_allclose(f(x, y, w), np.mean((y - x @ w) ** 2))
    assert of_first_call == [(False, True), (True, False)]


def test_explain_shows_them_and_a_mode_turns_them_off(monkeypatch):
    x, y, w = values()

    def made():
        f = synk.function([X, Y], [LOSS], bcast_inputs=[W], mode=PY, name="f")
        for _ in range(2 * TRIALS + 2):
            f(x, y, w)
        return f

    with synk.session(1):
        f = made()
        (part,) = f.explain().to_dict()["in_blocks"]
        assert part["blocks"] == part["tried"] > 10
        assert f"blocks      of the rows, {part['blocks']} on rank 0" in str(
            f.explain()
        )
        monkeypatch.undo()
        monkeypatch.setattr(blocks, "FROM", 1)
        assert not trials_of(made())


def test_an_engine_is_judged_by_its_calls_when_the_way_is_chosen(two_engines):
    x, y, w = values()
    f = synk.function([X, Y], [LOSS], bcast_inputs=[W], name="f")
    with synk.session(2):
        synk.tune(f, x, y, w)
        (best,) = [each for each in f._engines.facts() if each.is_best]
        assert best.nanoseconds_per_row > 0
        assert all(trial.chosen is not None for trial in trials_of(f))
    # Another graph, of which nothing is known from `f`
    g = synk.function([X, Y], [2 * LOSS], bcast_inputs=[W], name="g")
    with synk.session(2):
        for _ in range(2 * TRIALS):
            g(x, y, w)
            assert all(each.nanoseconds_per_row is None for each in g._engines.facts())
        g(x, y, w)
        assert all(trial.chosen is not None for trial in trials_of(g))
        (first, _) = g._engines.facts()
        assert first.nanoseconds_per_row > 0
