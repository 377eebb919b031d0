"""The channel: messages and replies of every size and kind, through thick and thin."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time

import numpy as np
import pytensor
import pytest
from processes import (
    PY,
    ROWS,
    TOTAL,
    all_pids,
    rank_pids,
    run_script,
    segments_of,
    summing,
)

import synk
from synk.errors import Aborted, RemoteError, SynkError
from synk.memory.segment import Segment
from synk.ranks.session import SESSION
from synk.workers.channel import IN_SEGMENT
from synk.workers.control import MESSAGE_ROOM, REPLY_ROOM, Control
from synk.workers.semaphore import ROOM, Semaphore
from synk.workers.waiting import TICK, wait

# -- messages and replies


def worker_echo(context, value):
    return value


def worker_hash(context, value):
    return len(value), hash(value)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_what_is_sent_comes_back_from_every_rank_in_order(n):
    with synk.session(n):
        assert SESSION.run(worker_echo, "x") == ["x"] * n
        assert SESSION.run(worker_rank) == list(range(n))


def worker_rank(context):
    return context.rank


VALUES = [
    None,
    (1, 2.5, "three", b"four", [5], {"six": 6}),
    np.arange(3),
    [np.float32(2), np.int64(3), np.bool_(True)],
    {"a": np.zeros((2, 0))},
    slice(1, None, 2),
    np.array(["x"], dtype=object),
    bytearray(b"abc"),
    np.random.default_rng(3),
    len,
    ValueError("a value"),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_keep_their_type_on_the_way_there_and_back(value):
    with synk.session(2):
        seen = SESSION.run(worker_echo, value)[1]
    assert type(seen) is type(value)
    assert pickle.dumps(seen) == pickle.dumps(value)


@pytest.mark.parametrize("room", [REPLY_ROOM, MESSAGE_ROOM])
@pytest.mark.parametrize("more", [-200, -20, -1, 0, 1, 20, 1000, 1_000_000])
def test_messages_and_replies_of_any_size(room, more):
    with synk.session(3):
        for value in ("a" * (room + more), "b" * (room + more), ""):
            assert SESSION.run(worker_echo, value) == [value] * 3


def test_a_large_message_and_a_small_reply_and_the_other_way_round():
    value = "x" * (4 * MESSAGE_ROOM)
    with synk.session(2):
        assert SESSION.run(worker_hash, value)[1][0] == len(value)
        assert len(SESSION.run(worker_make, len(value))[1]) == len(value)
    assert len(value) < IN_SEGMENT


def worker_make(context, size):
    return "y" * size


def test_large_messages_are_let_go():
    value = "x" * (4 * MESSAGE_ROOM)
    with synk.session(3):
        pids = all_pids()
        before = segments_of([*pids, SESSION.control._segment.key[0]])
        for i in range(20):
            SESSION.run(worker_echo, value + str(i))
        after = segments_of([*pids, SESSION.control._segment.key[0]])
        # Each rank keeps its last large reply: the master may not have read it yet.
        assert len(after - before) <= 2


def test_a_graph_larger_than_the_room_for_messages_travels():
    constant = np.random.default_rng(0).normal(size=(300, 100))
    x = pytensor.tensor.matrix("x", dtype="float64")
    call = synk.function([x], ((x @ constant).sum(), "sum"), mode=PY)
    assert constant.nbytes > 2 * MESSAGE_ROOM
    rows = np.ones((7, 300))
    with synk.session(3):
        np.testing.assert_allclose(call(rows), (rows @ constant).sum())


def test_many_outputs_in_one_reply():
    x = pytensor.tensor.vector("x", dtype="float64")
    outputs = [((i * x).sum(), "sum") for i in range(450)]
    call = synk.function([x], outputs, mode=PY)
    with synk.session(2):
        seen = call(np.ones(4))
    np.testing.assert_array_equal(seen, 4.0 * np.arange(450))


# -- what cannot be sent, or not be read


class Unsendable:
    def __reduce__(self):
        raise RuntimeError("cannot be sent")


class Unreadable:
    """What cannot be unpickled on a rank, as what it cannot import."""

    def __reduce__(self):
        return read, ()


def read():
    if synk.rank():
        raise ImportError("cannot be read")
    return Unreadable()


def worker_unsendable(context):
    return Unsendable() if context.rank else None


def worker_unreadable(context):
    return Unreadable() if context.rank == 1 else None


def test_a_message_that_cannot_be_pickled_is_an_error_in_the_master():
    with synk.session(2):
        pids = rank_pids()
        for _ in range(3):
            with pytest.raises(RuntimeError, match="cannot be sent"):
                SESSION.run(worker_echo, Unsendable())
        assert summing()(ROWS) == TOTAL
        assert rank_pids() == pids


def test_a_message_that_a_rank_cannot_read_is_an_error_and_not_its_death():
    with synk.session(3):
        pids = rank_pids()
        with pytest.raises(ImportError, match="cannot be read") as caught:
            SESSION.run(worker_echo, Unreadable())
        assert any("rank 1 of 3" in note for note in caught.value.__notes__)
        assert summing()(ROWS) == TOTAL
        assert rank_pids() == pids


def test_a_reply_that_cannot_be_pickled_is_an_error_and_not_a_death():
    with synk.session(3):
        pids = rank_pids()
        with pytest.raises(RuntimeError, match="cannot be sent") as caught:
            SESSION.run(worker_unsendable)
        assert any("rank 1 of 3" in note for note in caught.value.__notes__)
        assert summing()(ROWS) == TOTAL
        assert rank_pids() == pids


def test_a_function_of_the_channel_that_no_rank_has_imported_is_found(tmp_path):
    (tmp_path / "late.py").write_text("def worker_late(session):\n    return 7\n")
    result = run_script(
        """
        from synk.ranks.session import SESSION
        synk.fork(2)
        import late
        print("late", SESSION.run(late.worker_late))
        """,
        tmp_path,
    )
    assert result.stdout == "late [7, 7]\n", result


def test_values_of_classes_that_the_script_defines_after_the_fork(tmp_path):
    result = run_script(
        """
        synk.fork(2)

        class Late:
            def __init__(self, number):
                self.number = number

        variable = pytensor.shared(Late(3), name="late")
        synk.broadcast(variable, Late(4))
        back = synk.get_value(1, variable)
        print("late", type(back) is Late, back.number)
        """,
        tmp_path,
    )
    assert result.stdout == "late True 4\n", result


def test_ops_defined_in_the_script_before_and_after_the_fork(tmp_path):
    result = run_script(
        """
        class Early(Act):
            def perform(self, node, inputs, outputs):
                outputs[0][0] = inputs[0] * factor

        factor = 2
        synk.fork(2)

        class Later(Early):
            pass

        def sums(op):
            x = pt.matrix("x", dtype="float64")
            y = op(None, processes.nothing)(x)
            return synk.function([x], (y.sum(), "sum"), mode=PY)(ROWS)

        print(sums(Early) == 2 * TOTAL, sums(Later) == 2 * TOTAL)
        """,
        tmp_path,
    )
    assert result.stdout == "True True\n", result


# -- commands that fail


def test_an_abort_that_nobody_explains_is_an_error_still():
    with synk.session(2):
        with pytest.raises((SynkError, RemoteError)):
            SESSION.run(worker_abort)
        assert summing()(ROWS) == TOTAL


def worker_abort(context):
    raise Aborted


def test_an_error_in_the_middle_of_exchanges_is_contained():
    with synk.session(3):
        for rank in range(3):
            for step in range(3):
                with pytest.raises(KeyError) as caught:
                    SESSION.run(worker_exchanges, rank, step)
                assert any(f"rank {rank} of 3" in n for n in caught.value.__notes__)
        assert SESSION.run(worker_exchanges, -1, 0) == [[[0, 10, 20], [1, 11, 21]]] * 3


def worker_exchanges(context, rank, step):
    seen = []
    for i in range(2):
        if (context.rank, i) == (rank, step):
            raise KeyError(step)
        seen.append(context.comm.exchange(10 * context.rank + i))
    if (context.rank, 2) == (rank, step):
        raise KeyError(step)
    return seen


def test_barriers_hold_every_rank_until_all_have_come():
    with synk.session(5):
        for order in SESSION.run(worker_barriers, 200):
            assert order == list(range(200))


def worker_barriers(context, count):
    """At each barrier all ranks agree on its number; none is ahead or behind."""
    seen = []
    for i in range(count):
        words = context.comm.agree(i)
        assert words == [i] * context.size, (i, words)
        context.comm.barrier()
        seen.append(words[0])
    return seen


# -- semaphores


def test_a_wait_looks_about_and_ends_when_that_raises():
    memory = Segment(4096).memory()
    words, semaphore = memory[:8].cast("q"), Semaphore(memory[128:][:ROOM], True)
    looks = []

    def look():
        looks.append(time.monotonic())
        if len(looks) == 3:
            raise TimeoutError

    start = time.monotonic()
    with pytest.raises(TimeoutError):
        wait(words, 0, 1, semaphore, 0, look)
    assert 2.5 * TICK < time.monotonic() - start < 50 * TICK


def test_the_control_segment_is_unmapped_with_the_session():
    code = """
import synk
def mapped():
    return sum("memfd:synk-" in line for line in open("/proc/self/maps"))
for _ in range(3):
    with synk.session(3):
        pass
    print(mapped())
"""
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert len(set(output)) == 1, output


def test_a_control_segment_that_is_closed_twice_is_fine():
    control = Control(2, spin=False)
    control.close()
    control.close()
