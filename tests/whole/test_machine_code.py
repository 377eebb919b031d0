"""Numba mode: rank 0 makes the machine code, and the other ranks load it."""

import fcntl
import os
import signal
import uuid
from inspect import unwrap

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import stand_ins
from numba.core.errors import TypingError
from processes import Act, nothing
from pytensor.compile.mode import Mode
from pytensor.link.numba.dispatch import basic

import synk
from synk import compiled
from synk.ranks.session import SESSION
from synk.rules.graphs import compile_source

NUMBA = Mode("numba", None)
"""No rewrites: a graph is compiled as it is written."""

X = np.arange(12.0).reshape(4, 3)


def counts(made):
    """Return how often numba found the code of a function, and made it."""
    return made.stats.cache_hits.total(), made.stats.cache_misses.total()


def worker_codes(context, number):
    """Return that of each part, and of each loop over blocks of rows."""
    programs = context.functions[number]
    parts = [unwrap(made).vm.jit_fn for made in programs._compiled.values()]
    loops = [loop._compiled for loop in programs.blocks.loops.values()]
    # What was made ahead is what calls need.
    return [counts(made) for made in [*parts, *loops] if len(made.overloads) == 1]


def codes_of(function) -> list:
    """Return that of each rank."""
    return SESSION.run(worker_codes, function._usual.plans.last.replicas.number)


def a_step(constant: float):
    """Return a function of two stages, what it takes, its variable, and the result."""
    x, rate = pt.matrix("x"), pt.scalar("rate")
    w = pytensor.shared(np.ones(3), "w")
    rows = pt.exp(constant * x)  # which the second stage receives
    centred = rows - synk.ops.all_reduce(rows.mean(axis=0))
    updates = {w: w - rate * synk.ops.all_reduce((rows * w).mean(axis=0))}
    outputs = [(centred, "gather")]
    f = synk.function([x], outputs, [rate], updates=updates, mode=NUMBA)
    e = np.exp(constant * X)
    return f, w, e - e.mean(axis=0), 1 - 0.5 * e.mean(axis=0)


@pytest.mark.slow
def test_the_first_rank_makes_the_code_and_the_others_load_it():
    number = uuid.uuid4().int / 2**128  # in no graph of the cache on disk
    f, w, centred, updated = a_step(number)
    with synk.session(3):
        synk.distribute()
        before = codes_of(f)
        assert before[0][0] == (0, 1)  # the second part has no new number
        assert before[1:] == [[(1, 0)] * 2] * 2
        np.testing.assert_allclose(f(X, 0.5)[0], centred, rtol=1e-12)
        np.testing.assert_allclose(synk.get_value(2, w), updated, rtol=1e-12)
        assert codes_of(f) == before  # calls need no other code
        # That of slices, and of ranks without rows, is loaded too.
        np.testing.assert_allclose(f(X, 0.5, num_slices=2)[0], centred, rtol=1e-12)
        f(X, 0.5, batch=2)
        first, *others = codes_of(f)
    assert len(first) > 2
    for codes in others:
        assert len(codes) == len(first)
        assert all(misses == 0 for _, misses in codes)


def worker_kernel(context, text):
    """Return that of a training rule's loop."""
    kernel = compile_source(text)
    assert kernel(2.0) == 3.0
    return counts(kernel)


def test_one_rank_makes_a_rules_loop_which_the_others_wait_for_and_load():
    text = f'"""{uuid.uuid4()}"""\n\n\ndef sweep(x):\n    return x + 1\n'
    with synk.session(3):
        assert sorted(SESSION.run(worker_kernel, text)) == [(0, 1), (1, 0), (1, 0)]


def test_one_rank_makes_a_loop_over_blocks_which_the_others_load(monkeypatch):
    monkeypatch.delenv("SYNK_ENGINE")
    x, w = pt.matrix("x"), pytensor.shared(1.0)
    total = pt.exp(w * x * (uuid.uuid4().int / 2**128)).sum()
    f = synk.function([x], total, mode=NUMBA)
    with synk.session(3):
        f(np.ones((100_000, 3)))
        assert sorted(c[-1] for c in codes_of(f)) == [(0, 1), (1, 0), (1, 0)]


def test_a_process_that_is_stopped_while_it_makes_code_stops_no_other(monkeypatch):
    stand_ins.patience_for_code(monkeypatch, 0.05)
    text = f'"""{uuid.uuid4()}"""\n\n\ndef sweep(x):\n    return x + 1\n'
    with open(compile_source(text)._cache._lock, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert worker_kernel(None, text) == (0, 1)


class Wrong(Act):
    """Numba's code for it is wrong."""


@basic.register_funcify_default_op_cache_key(Wrong)
def _wrong(op, node, **kwargs):
    @basic.numba_njit
    def wrong(x):
        return x.no_such_attribute

    return wrong


def test_code_that_numba_refuses_is_an_error_of_the_call(two_ranks):
    x = pt.vector("x")
    f = synk.function([x], (Wrong(None, nothing)(x), "gather"), mode=NUMBA, local=True)
    synk.distribute()
    with pytest.raises(TypingError, match=r"(?s)no_such_attribute.*HINT: Set Py"):
        f(np.arange(4.0))


def test_interrupts_and_deaths_while_the_code_is_made_are_told(monkeypatch):
    f, _, centred, _ = a_step(0.5)
    with synk.session(3):
        with monkeypatch.context() as patch:
            stand_ins.machine_code(patch, lambda *_: signal.raise_signal(signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                f(X, 0.5)
        np.testing.assert_allclose(f(X, 0.5)[0], centred, rtol=1e-12)
        victim, other = SESSION.zygote.pids[2], a_step(0.5)[0]
        stand_ins.machine_code(monkeypatch, lambda *_: os.kill(victim, signal.SIGKILL))
        with pytest.raises(synk.WorkerDied, match="rank 2"):
            other(X, 0.5)


# -- kernels of synk's own, which come from numba's cache


def doubled(a):
    return 2 * a


def test_an_interrupt_comes_after_a_kernel_is_loaded(monkeypatch):
    kernel, came = compiled.compile_kernel(doubled), []
    kernel(2)

    def load(self, *what):
        signal.raise_signal(signal.SIGINT)
        came.append(sum(range(1000)))
        return whole(self, *what)

    whole = stand_ins.loading_of_kernels(monkeypatch, load)
    again = compiled.compile_kernel(doubled)
    with pytest.raises(KeyboardInterrupt):
        again(2)
    assert came == [499500]
    monkeypatch.undo()
    assert again(2) == 4
