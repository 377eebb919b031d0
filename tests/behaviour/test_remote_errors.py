"""Errors on ranks: what the master raises, and that the session goes on."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from processes import (
    ROWS,
    TOTAL,
    acting,
    arrive,
    assert_works,
    at_barrier,
    await_arrivals,
    reset,
    run_script,
    shared_ones,
    summing,
)

import synk
from synk.errors import Aborted, RemoteError, RemoteTraceback
from synk.workers.failure import Failure, as_one


class OfThisModule(Exception):
    """An exception with more to it than a message."""

    def __init__(self, code, reason):
        super().__init__(code, reason)
        self.code, self.reason = code, reason


class NotPicklable(Exception):
    """An exception whose arguments are not those of its constructor."""

    def __init__(self, code, reason):
        super().__init__(f"{reason} ({code})")
        self.hook = lambda: code


ERRORS = {
    "ValueError": lambda: ValueError("bad value", 7),
    "OSError": lambda: FileNotFoundError(2, "no such thing", "there"),
    "own": lambda: OfThisModule(4, "because"),
    "system exit": lambda: SystemExit(5),
    "long": lambda: RuntimeError("x" * 100_000),
}


def fail(name: str) -> None:
    raise ERRORS[name]()


def fail_in_an_unpicklable_way() -> None:
    raise NotPicklable(6, "nothing to be done")


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_on_a_rank_keeps_its_type_and_says_where(name):
    expected = ERRORS[name]()
    call = acting(1, fail, name)
    with synk.session(3):
        with pytest.raises(type(expected)) as caught:
            call(ROWS)
        error = caught.value
        assert error.args == expected.args
        assert vars(error).items() >= vars(expected).items()
        assert isinstance(error.__cause__, RemoteTraceback)
        assert "raise ERRORS[name]()" in str(error.__cause__)
        assert "in perform" in str(error.__cause__)
        notes = [note for note in error.__notes__ if "rank 1 of 3" in note]
        assert len(notes) == 1
        assert "'acting'" in notes[0]
        assert_works(3)


def test_an_error_that_cannot_be_pickled_comes_as_text():
    call = acting(1, fail_in_an_unpicklable_way)
    with synk.session(2):
        with pytest.raises(RemoteError, match=r"nothing to be done \(6\)") as caught:
            call(ROWS)
        assert "NotPicklable" in str(caught.value)
        assert "in fail_in_an_unpicklable_way" in str(caught.value.__cause__)
        assert any("rank 1 of 2" in note for note in caught.value.__notes__)
        assert_works(2)


def test_an_error_on_the_master_is_raised_as_it_is():
    call = acting(0, fail, "own")
    with synk.session(2):
        with pytest.raises(OfThisModule) as caught:
            call(ROWS)
        assert any("rank 0 of 2" in note for note in caught.value.__notes__)
        assert_works(2)


def test_an_error_on_all_ranks_is_raised_once():
    call = acting(None, fail, "ValueError")
    with synk.session(3):
        with pytest.raises(ValueError, match="bad value"):
            call(ROWS)
        assert_works(3)


# -- errors of several ranks


class Awkward(Exception):
    """The base of those whose methods raise: what a rank must survive."""


class NotesRaise(Awkward):
    @property
    def __notes__(self):
        raise LookupError("no notes")


class StrRaises(Awkward):
    def __str__(self):
        raise LookupError("no text")


class CauseRaises(Awkward):
    @property
    def __cause__(self):
        raise LookupError("no cause")


class ReduceExits(Awkward):
    def __reduce__(self):
        raise SystemExit(3)


class RestoringExits(Awkward):
    def __reduce__(self):
        return type(self), ("again",), {"x": 1}

    def __setstate__(self, state):
        raise SystemExit(4)


def fail_awkwardly(kind) -> None:
    raise kind("awkward")


@pytest.mark.parametrize("kind", Awkward.__subclasses__())
@pytest.mark.parametrize("rank", [0, 1, None])
def test_an_exception_whose_methods_raise_costs_no_rank(kind, rank):
    call = acting(rank, fail_awkwardly, kind)
    with synk.session(3):
        # One that cannot be pickled comes as text. PyTensor adds notes of its own, and
        # what raises there is what an Op has raised.
        with pytest.raises((kind, RemoteError, LookupError)) as caught:
            call(ROWS)
        assert caught.type in (kind, RemoteError) or kind is NotesRaise
        assert_works(3)


def test_a_failure_whose_notes_raise_says_where_it_was_in_its_cause():
    failure = Failure(NotesRaise("text"), "[synk] on rank 1", 1)
    error = failure.rebuild()
    assert type(error) is NotesRaise
    assert "[synk] on rank 1" in str(error.__cause__)


def fail_together(*errors: tuple) -> None:
    """Raise on each rank that has an error, when all of these have come."""
    ranks = [rank for rank, _ in errors]
    if synk.rank() in ranks:
        await_arrivals(ranks.index(synk.rank()))
        arrive()
        await_arrivals(len(ranks))
        raise dict(errors)[synk.rank()]


def test_errors_of_one_class_are_one_error_that_names_the_ranks():
    reset()
    call = acting(None, fail_together, (1, KeyError("a")), (2, KeyError("a")))
    with synk.session(4):
        with pytest.raises(KeyError) as caught:
            call(ROWS)
        notes = caught.value.__notes__
        assert sum("[synk]" in note for note in notes) == 2
        assert notes[-1] in [f"[synk] likewise on rank {rank} of 4" for rank in (1, 2)]
        assert isinstance(caught.value.__cause__, RemoteTraceback)
        assert_works(4)


def test_the_masters_own_error_stands_for_those_of_its_class():
    reset()
    errors = (0, KeyError("of 0")), (2, KeyError("x" * 1000))
    call = acting(None, fail_together, *errors)
    with synk.session(3):
        with pytest.raises(KeyError, match="of 0") as caught:
            call(ROWS)
        note = caught.value.__notes__[-1]
        assert note.startswith("[synk] on rank 2 of 3 as well: KeyError: 'xxx")
        assert len(note) < 400
        assert caught.value.__cause__ is None
        assert_works(3)


def test_errors_of_several_classes_are_a_group():
    reset()
    errors = (0, ValueError(0)), (1, IndexError(1)), (2, KeyError(2))
    call = acting(None, fail_together, *errors)
    with synk.session(4):
        with pytest.raises(ExceptionGroup, match="ranks 0, 1, 2 of 4 failed") as caught:
            call(ROWS)
        for rank, error in errors:
            (found,) = [e for e in caught.value.exceptions if type(e) is type(error)]
            assert any(f"on rank {rank} of 4" in note for note in found.__notes__)
        assert_works(4)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_group_is_in_the_order_of_time(order):
    kinds = ValueError, IndexError, KeyError
    failures = {rank: Failure(kinds[rank](), "there", rank) for rank in order}
    stopped = Failure(Aborted(), "there", 3)
    group = as_one([*(failures[rank] for rank in range(3)), stopped], 4)
    assert [type(error) for error in group.exceptions] == [kinds[r] for r in order]


def test_a_group_with_a_system_exit_is_not_caught_as_an_exception():
    reset()
    call = acting(None, fail_together, (1, SystemExit(3)), (2, ValueError("v")))
    with synk.session(3):
        with pytest.raises(BaseExceptionGroup) as caught:
            call(ROWS)
        assert not isinstance(caught.value, Exception)
        assert_works(3)


def test_ranks_that_were_stopped_for_another_do_not_count(monkeypatch):
    at_barrier(1, lambda: fail("ValueError"), monkeypatch)
    with synk.session(4):
        with pytest.raises(ValueError, match="bad value") as caught:
            synk.all_reduce(shared_ones())
        assert len(caught.value.__notes__) == 1
        monkeypatch.undo()
        assert_works(4)


def test_an_error_on_a_rank_frees_those_that_wait_in_a_barrier(monkeypatch):
    at_barrier(1, lambda: fail("own"), monkeypatch)
    with synk.session(3):
        assert summing()(ROWS) == TOTAL
        values = shared_ones()
        start = time.monotonic()
        with pytest.raises(OfThisModule) as caught:
            synk.all_reduce(values, "sum")
        assert time.monotonic() - start < 1
        note = caught.value.__notes__[-1]
        assert "rank 2 of 3" in note
        assert note.endswith("in reduce")  # not in the function called before
        synk.all_reduce(values, "sum")
        np.testing.assert_array_equal(synk.get_value(1, values), np.full(5, 3.0))
        assert_works(3)


def test_errors_in_a_row_leave_a_working_session():
    call = acting(1, fail, "ValueError")
    with synk.session(2):
        for _ in range(50):
            with pytest.raises(ValueError, match="bad value"):
                call(ROWS)
        assert_works(2)


def test_an_exception_class_of_the_script_comes_back_as_itself(tmp_path):
    result = run_script(
        """
        synk.fork(2)

        class Mine(Exception):
            pass

        class Fails(Act):
            def perform(self, node, inputs, outputs):
                if synk.rank() == 1:
                    raise Mine("of the script")
                outputs[0][0] = inputs[0]

        x = pt.matrix("x", dtype="float64")
        y = Fails(None, processes.nothing)(x)
        f = synk.function([x], (y.sum(), "sum"), mode=PY)
        try:
            f(ROWS)
        except Mine as error:
            print("caught", error, type(error) is Mine)
            print("cause", type(error.__cause__).__name__)
        assert summing()(ROWS) == TOTAL
        print("goes on")
        """,
        tmp_path,
    )
    assert (
        "caught of the script True\ncause RemoteTraceback\ngoes on" in result.stdout
    ), result
    assert result.returncode == 0


def test_a_function_that_failed_once_can_be_called_again():
    reset()
    call = acting(1, fail_the_first_time)
    with synk.session(2):
        with pytest.raises(ZeroDivisionError):
            call(ROWS)
        assert call(ROWS) == TOTAL


_failed: list[int] = []


def fail_the_first_time() -> None:
    if not _failed:
        _failed.append(1)
        raise ZeroDivisionError
