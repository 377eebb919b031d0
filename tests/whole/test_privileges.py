"""Scripts that begin as root and go on as somebody else."""

from __future__ import annotations

import os

import pytest
from processes import run_script

from synk.workers import preconditions, privileges
from synk.workers.zygote_source import ZygoteSource

as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can become somebody else"
)

SCRIPT = """
import os, sys
import numpy as np
import synk
from synk.ranks.session import SESSION

def worker_sum(context, window):
    return os.geteuid(), float(context.array(window).sum())

def worker_large(context):
    return bytes(100_000)

def drop():
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)

def say(function, *args):
    try:
        print(function(*args))
    except synk.StateError as error:
        print(error)

def call():
    say(lambda: SESSION.run(worker_sum, *SESSION.stage.put([np.ones(100)])))
    data = synk.data(np.ones(1000))
    say(lambda: SESSION.run(worker_sum, data._window()))
    say(lambda: [len(reply) for reply in SESSION.run(worker_large)])

synk.fork(2)
call()  # all modules are imported now, which nobody else might be allowed to read
"""

BEFORE = """
early = synk.data(np.ones(10))
synk.close()
drop()
with synk.session(2):
    call()
    say(lambda: SESSION.run(worker_sum, early._window()))
    call()
"""

AFTER = """
drop()
say(lambda: [len(reply) for reply in SESSION.run(worker_large)])
SESSION.zygote.interrupt(1)
synk.close()
"""

AS_ROOT = ["[(0, 100.0), (0, 100.0)]", "[(0, 1000.0), (0, 1000.0)]", "[100000, 100000]"]
AS_NOBODY = [line.replace("(0,", "(65534,") for line in AS_ROOT]


@as_root
def test_a_script_that_drops_privileges_can_fork_afterwards(tmp_path):
    done = run_script(SCRIPT + BEFORE, tmp_path)
    assert done.returncode == 0, done.stderr
    *output, refused, _, _, _ = done.stdout.splitlines()
    assert output == AS_ROOT + AS_NOBODY
    assert "changed after that memory was made. Drop privileges (os.setuid)" in refused
    assert done.stdout.splitlines()[-3:] == AS_NOBODY


@as_root
def test_to_drop_them_after_the_fork_is_a_clear_error(tmp_path):
    done = run_script(SCRIPT + AFTER, tmp_path)
    assert done.returncode == 0, done.stderr
    *output, refused = done.stdout.splitlines()
    assert output == AS_ROOT
    assert "(uid 65534) may not open memory of process" in refused
    assert "before you make synk.Data and call synk.fork()" in refused


class Kept:
    """Stands for a zygote that was kept."""

    is_alive = True
    closed = False

    def close(self):
        self.closed = True


@pytest.mark.parametrize("has_dropped", [False, True])
def test_no_rank_is_forked_from_a_zygote_that_has_other_privileges(
    monkeypatch, has_dropped
):
    source, kept, started = ZygoteSource(None, "main"), Kept(), []
    source._kept, source._user = kept, privileges.user()
    monkeypatch.setattr(preconditions, "why_no_fork", lambda: "pretended")
    monkeypatch.setattr(source, "_start", lambda zygote, *_: started.append(zygote))
    if has_dropped:
        monkeypatch.setattr(privileges, "user", lambda: ((1, 1, 1), (1, 1, 1), []))
    zygote = source.take(1, lambda is_forked: None)
    assert (zygote is kept) == (not has_dropped)
    assert started == ([zygote] if has_dropped else [])
    assert kept.closed == has_dropped
