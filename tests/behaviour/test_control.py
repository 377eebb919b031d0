"""The control segment: what lies in it, and processes that were not forked with it."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

from synk.comm.shm import SharedMemoryComm
from synk.workers.channel import MasterChannel, WorkerChannel
from synk.workers.control import MESSAGE_ROOM, REPLY_ROOM, Control
from synk.workers.limit import Limit
from synk.workers.recorder import Unrecorded
from synk.workers.semaphore import ROOM
from synk.workers.waiting import LOOKS, SPINS


def address(memory) -> int:
    return np.frombuffer(memory, np.uint8).__array_interface__["data"][0]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_everything_has_a_place_of_its_own_on_cache_lines_of_its_own(size):
    control = Control(size, spin=True)
    semaphores = [control.joined, *control.launched, *control.met]
    rooms = [
        (address(control.words), control.words.nbytes),
        *((address(semaphore.memory), ROOM) for semaphore in semaphores),
        (address(control.message), MESSAGE_ROOM),
        *((address(reply), REPLY_ROOM) for reply in control.replies),
    ]
    assert len(rooms) == 1 + (2 * size + 1) + 1 + size
    end = address(control.words)
    for start, nbytes in rooms:
        assert start == end
        assert start % 128 == 0
        end += nbytes
    assert end - address(control.words) <= control.place[3]


@pytest.mark.parametrize("spin", [False, True])
def test_who_attaches_has_the_same_words_and_semaphores(spin):
    control = Control(3, spin)
    control.words[0], control.message[5], control.replies[2][7] = 11, 12, 13
    control.met[1].post()
    seen = Control.attach(control.place)
    assert (seen.size, seen.spins, seen.looks) == (
        (3, SPINS, LOOKS) if spin else (3, 0, 0)
    )
    assert (seen.command, seen.message[5], seen.replies[2][7]) == (11, 12, 13)
    assert [semaphore.value for semaphore in seen.met] == [0, 1, 0]
    seen.met[1].take()
    assert control.met[1].value == 0
    seen.array[0] = 14
    assert control.command == 14
    control.close()
    seen.abort()  # what is attached stays
    assert seen.aborted


def square(context, value):
    return os.getpid(), value**2


def serve(control: Control) -> None:
    """Answer two commands as rank 1 of 2, with a meeting in each; stay until killed."""
    comm = SharedMemoryComm(control, 1, lambda: None, Limit(None), Unrecorded())
    channel = WorkerChannel(control, 1)
    for _ in range(2):
        channel.wait(lambda: None)
        work, args, _ = channel.read()
        comm.barrier()
        channel.reply(work(None, *args))
    signal.pause()  # the second reply is in this process's memory


def talk(control: Control) -> list:
    """Send two commands, of which the second and its answer are large."""
    limit = Limit(30)
    master = MasterChannel(control, lambda patience=0: None, limit)
    comm = SharedMemoryComm(control, 0, lambda: None, limit, Unrecorded())
    replies = []
    for value in (7, np.full(100_000, 3)):
        master.launch(square, (value,), ())
        comm.barrier()
        replies += master.join()
    return replies


def check(replies: list, pid: int) -> None:
    (first, number), (second, array) = replies
    assert (first, second, number) == (pid, pid, 49)
    np.testing.assert_array_equal(array, np.full(100_000, 9))


@pytest.mark.parametrize("spin", [False, True])
def test_a_process_that_was_forked_earlier_can_be_a_rank(spin):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with os.fdopen(read, "rb") as file:
                serve(Control.attach(pickle.load(file)))
        finally:
            os._exit(0)
    os.close(read)
    control = Control(2, spin)
    try:
        with os.fdopen(write, "wb") as file:
            pickle.dump(control.place, file)
        check(talk(control), pid)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


FRESH = """
import sys
import test_control
from synk.workers.control import Control
test_control.serve(Control.attach(tuple(map(int, sys.argv[1:]))))
"""


def test_a_new_interpreter_can_be_a_rank():
    control = Control(2, spin=False)
    place = map(str, control.place)
    with subprocess.Popen([sys.executable, "-c", FRESH, *place], cwd=FOLDER) as rank:
        try:
            check(talk(control), rank.pid)
        finally:
            rank.kill()


FOLDER = os.path.dirname(__file__)


def test_a_descriptor_that_was_sent_is_a_place():
    control = Control(2, spin=False)
    _, fd, serial, nbytes = control.place
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(ours, [b"x"], [fd])
        _, (received,), _, _ = socket.recv_fds(theirs, 1, 1)
    try:
        seen = Control.attach((os.getpid(), received, serial, nbytes))
    finally:
        os.close(received)
    seen.words[0] = 3
    assert control.command == 3


def test_there_is_nothing_to_attach_to_once_it_is_closed():
    control = Control(2, spin=False)
    process = subprocess.run(
        [sys.executable, "-c", FRESH, *map(str, [2**30, *control.place[1:]])],
        cwd=FOLDER,
        capture_output=True,
        text=True,
    )
    assert "FileNotFoundError" in process.stderr
