"""An interrupt wherever Python looks for signals, in whoever's code: all or nothing.

`test_interrupt_lines` interrupts lines of synk. Here it is every place, in code of
Python's and PyTensor's as well: where a function is entered, where one of C has
returned, and at the end of a loop's body.
"""

from __future__ import annotations

import dis
import functools
import sys
from types import CodeType

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile import Mode
from reference import PY

import synk

ROWS = np.arange(12.0).reshape(4, 3)
IN_PLACE = Mode("py", "fast_run")
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)


@functools.cache
def ops_of(code: CodeType) -> dict[int, str]:
    return {ins.offset: ins.opname for ins in dis.get_instructions(code)}


class InterruptedAtPlace:
    """Raises KeyboardInterrupt at the k-th place, in a ``with`` block."""

    def __init__(self, k: int) -> None:
        self.k, self.places = k, 0
        self.raised_at: str | None = None

    def __enter__(self):
        sys.settrace(self._enter_function)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def _place(self, frame) -> None:
        self.places += 1
        if self.places == self.k:
            code = frame.f_code
            self.raised_at = f"{code.co_filename}:{frame.f_lineno} {code.co_name}"
            raise KeyboardInterrupt

    def _enter_function(self, frame, event, arg):
        if frame.f_code is InterruptedAtPlace.__exit__.__code__:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        ops, has_called = ops_of(frame.f_code), False

        def follow(frame, event, arg):
            nonlocal has_called
            if event == "opcode":
                op = ops.get(frame.f_lasti, "")
                if has_called or op.startswith("JUMP_BACKWARD"):
                    has_called = False
                    self._place(frame)
                has_called = op.startswith("CALL")
            return follow

        self._place(frame)
        return follow


def all_of(w):
    x = pt.dmatrix("x")
    return x, w - 0.5 * x.sum(axis=0)


def one_of(w):
    x = pt.dmatrix("x")
    return x, pt.set_subtensor(w[1], x.sum())


@pytest.mark.parametrize("mode", [PY, IN_PLACE], ids=["new values", "in place"])
@pytest.mark.parametrize("updated", [all_of, one_of])
@pytest.mark.parametrize("way", ["call", "run", "as_theano"])
def test_an_interrupted_call_is_made_on_all_ranks_or_on_none(
    two_ranks, way, updated, mode
):
    first = np.arange(3.0)
    w, calls = pytensor.shared(first, "w"), pytensor.shared(0.0, "calls")
    x, new_w = updated(w)
    updates = [(w, new_w), (calls, calls + 1)]
    f = synk.function([x], [w.sum(), (x @ w).sum()], updates=updates, mode=mode)
    make = {
        "call": lambda: f(ROWS),
        "run": lambda: f.run([[0, 1, 2, 3]], ROWS),
        "as_theano": lambda: f.as_theano(ROWS),
    }[way]
    make()
    then = pytensor.function([x], new_w, mode=PY)
    made = []
    for k in range(1, 5000):
        w.set_value(first)
        calls.set_value(0.0)
        synk.get_value(1, [w, calls])
        with InterruptedAtPlace(k) as trace:
            try:
                make()
            except KeyboardInterrupt:
                assert trace.raised_at
        (value, n), *others = [synk.get_value(rank, [w, calls]) for rank in range(2)]
        where = f"{k}, {trace.raised_at}"
        made.append(float(n))
        for other, calls_made in others:
            np.testing.assert_array_equal(other, value, where)
            assert calls_made == n, where
        w.set_value(first)
        right = then(ROWS) if n == 1 else first
        np.testing.assert_array_equal(value, right, where)
        if not trace.raised_at:
            break
    assert trace.raised_at is None
    assert k > 300
    assert set(made) == {0, 1}
