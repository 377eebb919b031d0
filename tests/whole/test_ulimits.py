"""Low limits of a process: plain errors, and what was there before is still there."""

from __future__ import annotations

import errno
import os

import pytest
from processes import run_script

from synk.errors import SynkError
from synk.memory.ulimits import explain, in_words

SCRIPT = """
import os, resource
import numpy as np, processes, synk
from synk.memory.segment import Segment
from synk.ranks.session import SESSION

def limit(which, value):
    hard = resource.getrlimit(which)[1]
    resource.setrlimit(which, (value, hard))

def open_files():
    return len(os.listdir("/proc/self/fd"))

def worker_many(context, count):
    return len([Segment(100) for _ in range(count)])

def refused(function, *args):
    before = open_files()
    try:
        function(*args)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    else:
        text = "not refused"
    print(text if open_files() == before else f"{open_files() - before} files more")
"""


def output(body: str, tmp_path) -> list[str]:
    done = run_script(SCRIPT + body, tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


FILES = """
call = processes.summing()
limit(resource.RLIMIT_NOFILE, 100)
synk.fork(2)
data = synk.data(np.ones((10, 2)))
refused(lambda: [synk.data([1]) for _ in range(100)])
refused(lambda: SESSION.run(worker_many, 100))
assert call(data) == 20
synk.close()
"""


def test_too_many_open_files_are_named_with_their_limit(tmp_path):
    of_data, of_rank = output(FILES, tmp_path)
    for line in (of_data, of_rank):
        assert line.startswith("SynkError: ")
        assert "too many open files: ulimit -n is 100. Each synk.Data takes two" in line


SPACE = """
data = synk.data([1, 2, 3])
limit(resource.RLIMIT_AS, 8 << 30)
refused(data.set_length, 1 << 30)
assert 512 * os.fstat(data._segment.place[1]).st_blocks == 4096
limit(resource.RLIMIT_AS, resource.RLIM_INFINITY)
limit(resource.RLIMIT_FSIZE, 1 << 20)
refused(data.set_length, 1 << 20)
assert list(data.data) == [1, 2, 3]
"""


def test_limits_of_memory_are_named_and_leave_nothing_reserved(tmp_path):
    of_space, of_size = output(SPACE, tmp_path)
    what = "SharedMemoryFull: no room for {:,} bytes of shared memory: "
    assert of_space.startswith(what.format((8 << 30) - 4096))
    assert "ulimit -v is 8,589,934,592," in of_space
    assert of_size.startswith(what.format((8 << 20) - 4096))
    assert "ulimit -f is 1,048,576:" in of_size


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENFILE, "too many open files on this machine"),
        (errno.ENOENT, None),
    ],
)
def test_only_limits_are_explained(number, words):
    error = OSError(number, os.strerror(number))
    assert (explain(error) or "").startswith(words or "")
    with pytest.raises(SynkError if words else OSError) as caught, in_words():
        raise error
    assert (caught.value is error) == (words is None)
