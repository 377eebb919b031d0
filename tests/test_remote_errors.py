"""Errors on ranks: what the master raises, and that the session goes on."""

from __future__ import annotations

import time

import numpy as np
import pytest
from processes import (
    ROWS,
    TOTAL,
    acting,
    assert_works,
    at_barrier,
    reset,
    run_script,
    shared_ones,
    summing,
)

import synk
from synk.errors import RemoteError, RemoteTraceback


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
