"""Functions that name no mode: whoever makes a call, its numbers are the serial ones.

They have an Op of Python's in them, or something else that JAX is not tried for, where
the process of the tests makes the calls: it is to fork ranks afterwards.
"""

from __future__ import annotations

import functools
import os
import uuid

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import synk

X, Y = pt.dmatrix("x"), pt.dvector("y")
VALUES = np.arange(24.0).reshape(8, 3) % 5, np.arange(8.0)


class Watched(Op):
    """A number itself. Notes the cores of rank 0, and raises there what it is told."""

    __props__ = ()
    cores: set[int] | None = None
    raises: type[BaseException] | None = None

    def make_node(self, value):
        return Apply(self, [value], [value.type()])

    def perform(self, node, inputs, outputs):
        Watched.cores = os.sched_getaffinity(0)
        if Watched.raises is not None:
            raise Watched.raises("as it was told")
        outputs[0][0] = np.array(inputs[0])


@pytest.fixture
def auto(monkeypatch):
    """Let engines be chosen, as in a script that says nothing."""
    monkeypatch.setenv("SYNK_ENGINE", "auto")
    monkeypatch.setattr(Watched, "raises", None)


class Training:
    """Steps of least squares, beside the same in numpy."""

    def __init__(self, mode=None, watched: bool = True) -> None:
        self.w = pytensor.shared(np.zeros(3), "w")
        self.calls = pytensor.shared(np.int64(0), "calls")
        loss = ((X @ self.w - Y) ** 2).mean()
        change = Watched()(loss) - loss if watched else 0.0
        self.step = synk.function(
            [X, Y],
            [loss, (X @ self.w) * 2],
            updates=[
                (self.w, self.w - 0.01 * pytensor.grad(loss, self.w) + change),
                (self.calls, self.calls + 1),
            ],
            mode=mode,
        )
        self.begin()

    def begin(self) -> None:
        """Go back to the first step."""
        self.w.set_value(np.zeros(3))
        self.calls.set_value(0)
        self.right, self.made = np.zeros(3), 0

    def expected(self, values=VALUES) -> tuple[float, np.ndarray]:
        """Make the next step in numpy; return what the function is to return."""
        rows, targets = map(np.array, values)
        fit = rows @ self.right
        self.right = self.right - 0.02 * rows.T @ (fit - targets) / len(rows)
        self.made += 1
        return ((fit - targets) ** 2).mean(), fit * 2

    def check_call(self, values=VALUES, **options) -> None:
        found, expected = self.step(*values, **options), self.expected(values)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)

    def check_variables(self, ranks: int) -> None:
        np.testing.assert_allclose(self.w.get_value(), self.right, rtol=1e-10)
        assert self.calls.get_value() == self.made
        for rank in range(ranks):
            w, calls = synk.get_value(rank, [self.w, self.calls])
            np.testing.assert_allclose(w, self.right, rtol=1e-10)
            assert calls == self.made


@pytest.fixture
def training(auto) -> Training:
    """Return the steps of all these tests, compiled once, from the first one on."""
    found = compiled_training()
    found.begin()
    return found


@functools.cache
def compiled_training() -> Training:
    return Training()


def check_all_kinds_of_calls(training: Training, ranks: int) -> None:
    """Make calls while engines take turns, and when they no longer do."""
    step = training.step
    for round_ in range(2):
        for _ in range(6):
            training.check_call()
        training.check_variables(ranks)
        training.check_call(num_slices=2)
        training.check_call(check="serial")
        training.check_call([part[:5] for part in VALUES])
        training.check_call(list(map(synk.data, VALUES)))
        loss, _ = training.expected()
        assert step(*VALUES, output_subset=[0])[0] == pytest.approx(loss)
        batches = [slice(0, 4), slice(4, 8), slice(2, 6)] * 4
        (losses,) = step.run(batches, *VALUES, output_subset=[0])
        for loss, batch in zip(losses, batches, strict=True):
            right, _ = training.expected([part[batch] for part in VALUES])
            assert loss == pytest.approx(right)
        training.w.set_value(np.full(3, 0.5))
        training.right = np.full(3, 0.5)
        training.check_call()
        training.check_variables(ranks)
        if not round_:
            synk.tune(step, *VALUES)
            training.check_variables(ranks)


@pytest.mark.parametrize("n", [1, 3])
def test_calls_are_the_serial_ones_and_updates_are_made_once(auto, n):
    training = Training()
    with synk.session(n):
        check_all_kinds_of_calls(training, n)


@pytest.mark.slow
@in_a_child
def test_values_go_from_the_arrays_of_one_engine_to_those_of_another(auto):
    training = Training(watched=False)
    with synk.session(2):
        check_all_kinds_of_calls(training, 2)
        engines = training.step.explain().to_dict()["engines"]
    names = {"JAX", "C", "numba"}
    assert {each["name"] for each in engines} == names | {
        f"{name}, rank 0 alone" for name in names
    }


# -- tuning


def test_tuning_changes_nothing_and_tells_what_it_has_found(
    training, two_ranks, capsys
):
    table = synk.tune(training.step, *VALUES)
    training.check_variables(2)
    assert all(row.nanoseconds_per_row > 0 for row in table)
    (best,) = [row.name for row in table if row.is_best]
    assert f"{best}: " in capsys.readouterr().out
    assert f"{best}: " in str(training.step.explain())
    kept = [row["name"] for row in training.step.explain().to_dict()["engines"]]
    assert kept == [row.name for row in table]
    with pytest.raises(TypeError):
        synk.tune(training.step, VALUES[0])
    training.check_call()
    training.check_variables(2)


def test_there_is_nothing_to_tune_where_the_mode_is_named_or_numbers_drawn(
    auto, two_ranks
):
    stream = pytensor.shared(np.random.default_rng(0))
    after, drawn = pt.random.normal(rng=stream, size=Y.shape).owner.outputs
    named = synk.function([Y], Y.sum(), mode="FAST_COMPILE")
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        by_config = synk.function([Y], Y.sum())
        assert synk.tune(by_config, VALUES[1]) == []
    assert synk.tune(named, VALUES[1]) == []
    draws = synk.function([Y], (Y + drawn).sum(), updates=[(stream, after)])
    before = stream.get_value()
    assert synk.tune(draws, VALUES[1]) == []
    assert stream.get_value().bit_generator.state == before.bit_generator.state


def test_the_environment_names_an_engine_for_all_that_name_none(auto, monkeypatch):
    for said, names in {"C": ["C"], "numba": ["numba"], "default": []}.items():
        monkeypatch.setenv("SYNK_ENGINE", said)
        f = synk.function([Y], (Y * 2).sum())
        with synk.session(1):
            assert f(VALUES[1]) == 56
            engines = f.explain().to_dict()["engines"]
        assert [each["name"] for each in engines] == names
    monkeypatch.setenv("SYNK_ENGINE", "Fortran")
    with (
        synk.session(1),
        pytest.raises(synk.SynkError, match="SYNK_ENGINE is 'Fortran'; it can be one"),
    ):
        f(VALUES[1])


def test_one_rank_has_no_others_to_be_alone_of(training):
    with synk.session(1):
        table = synk.tune(training.step, *VALUES)
    assert {row.name for row in table} == {"C", "numba"}


# -- rank 0 alone


def tuned_alone(training: Training) -> None:
    """Find that eight rows are soonest computed by rank 0, as they are by far."""
    for _ in range(10):
        table = synk.tune(training.step, *VALUES)
        if any(row.is_best and row.name.endswith("rank 0 alone") for row in table):
            return
    pytest.fail(f"to launch ranks for eight rows was faster: {table}")


def test_rank_0_alone_has_all_cores_and_the_others_get_what_it_updates(training):
    total = synk.function([X], (X @ training.w).sum(), mode="FAST_COMPILE")
    before = os.sched_getaffinity(0)
    with synk.session(2):
        own = os.sched_getaffinity(0)
        tuned_alone(training)
        for k in range(4):
            training.check_call()
            assert Watched.cores == before
            if k % 2:
                right = (VALUES[0] @ training.right).sum()
                np.testing.assert_allclose(total(VALUES[0]), right, rtol=1e-10)
                assert os.sched_getaffinity(0) == own
                training.check_variables(2)
        loss, rows = training.step(*VALUES)
        training.expected()
        loss[...] = rows[...] = -1  # they are the caller's
        training.check_call()
        synk.set_value(1, training.w, np.zeros(3))
        with pytest.raises(synk.SplitError, match="own"):
            training.step(*VALUES)
        synk.broadcast(training.w)
        training.check_call()
        training.check_variables(2)
    with synk.session(3):  # anew
        training.check_call()
        training.check_variables(3)


@pytest.mark.parametrize("error", [IndexError, KeyboardInterrupt])
def test_what_fails_alone_changes_nothing(training, two_ranks, error, monkeypatch):
    tuned_alone(training)
    data = list(map(synk.data, VALUES))
    for values in (VALUES, data, data):
        training.check_call(values)
        monkeypatch.setattr(Watched, "raises", error)
        with pytest.raises(error):
            training.step(*values)
        monkeypatch.setattr(Watched, "raises", None)
        training.check_variables(2)

    def stop(number):
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training.step.run([slice(0, 8)] * 4, *VALUES, progress=stop)
    for _ in range(2):
        training.expected()
    training.check_variables(2)
    training.check_call()


def test_what_means_something_else_on_one_rank_is_computed_by_all(auto, two_ranks):
    w = Watched()(Y[0])
    largest = (Y.max() + 0 * w, "avg")
    own = synk.ops.local(Y).sum() + 0 * w
    f = synk.function([Y], [largest, (own, None)], on_unused_input="ignore")
    table = synk.tune(f, VALUES[1])
    assert not [row.name for row in table if "alone" in row.name]
    assert f(VALUES[1]) == [(3 + 7) / 2, 0 + 1 + 2 + 3]


# -- errors


class Later(Watched):
    """An Op that an engine finds, in the second call, that it does not know."""

    made = 0

    def perform(self, node, inputs, outputs):
        Later.made += 1
        if Later.made == 2:
            raise NotImplementedError("of such rows")
        outputs[0][0] = np.array(inputs[0])


@pytest.mark.parametrize("num_slices", [1, 2])
def test_no_call_of_a_run_is_made_twice(auto, num_slices, monkeypatch):
    total = pytensor.shared(0.0, "total")
    f = synk.function([Y], updates=[(total, total + Later()(Y.sum()))])
    monkeypatch.setattr(Later, "made", 0)
    with synk.session(1), pytest.raises(NotImplementedError):
        f.run([slice(0, 2), slice(2, 4), slice(4, 6)], VALUES[1], num_slices=num_slices)
    assert total.get_value() == 1


# -- the next run of the script


def test_what_was_found_is_known_to_the_next_run(auto, two_ranks):
    """As to the next function of the same graph, for about as many rows."""
    number = uuid.uuid4().int / 2**128  # in no graph of an earlier run
    made = [synk.function([Y], number * Watched()(Y.sum())) for _ in range(2)]
    (best,) = [row.name for row in synk.tune(made[0], VALUES[1]) if row.is_best]
    again, rows = made[1], VALUES[1]
    for times in (1, 50):
        assert again(np.tile(rows, times)) == pytest.approx(28 * times * number)
        engines = again.explain().to_dict()["engines"]
        known = [each["name"] for each in engines if each["dropped"] is None]
        # Of what was slower by little it may be asked once more.
        assert best in known
        assert (len(engines) < 4) == (times < 4), engines
