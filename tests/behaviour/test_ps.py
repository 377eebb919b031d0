"""`python -m synk ps` and `clean`: what they find, and what they leave alone."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
from processes import (
    ROWS,
    TOTAL,
    all_pids,
    is_alive,
    rank_pids,
    running,
    summing,
    wait_until,
)

import synk
from synk.__main__ import main
from synk.commands import clean, ps
from synk.commands.sessions import find_sessions
from synk.ranks.session import SESSION
from synk.workers.records import Records


def found() -> list:
    """Return what is found of this process's session."""
    ours = [s for s in find_sessions() if s.owner.master == os.getpid()]
    return [s for s in ours if s.is_running]


def block_of(report: str, pid: int) -> str:
    """Return the part of a report that is about one session."""
    blocks = [b for b in report.split("\n\n") if b.startswith(f"session of {pid}: ")]
    assert len(blocks) == 1, report
    return blocks[0]


def test_a_session_is_listed_with_its_ranks_and_memory():
    assert found() == []
    rows = synk.data(ROWS.repeat(100_000, axis=0))
    call = summing()
    with synk.session(3):
        assert call(ROWS) == TOTAL
        assert call(rows) == pytest.approx(100_000 * TOTAL)
        zygote, *_ = all_pids()
        (session,) = found()
        assert session.is_running
        assert not session.is_orphan
        assert session.pids == [os.getpid(), *rank_pids().values()]
        assert session.holders == {os.getpid(), *all_pids()}
        report = block_of(ps.report(), os.getpid())
        lines = report.splitlines()
        assert re.fullmatch(
            rf"  3 ranks, \d+ MiB in \d+ segments, zygote {zygote}", lines[1]
        )
        assert int(lines[1].split()[2]) >= rows.data.nbytes >> 20
        assert lines[2].split() == ["rank", "pid", "state", "CPU", "doing"]
        assert re.search(rf" 0 +{os.getpid()} .* running the script, for", lines[3])
        for rank, line in enumerate(lines[4:], 1):
            pid = rank_pids()[rank]
            assert re.search(
                rf" {rank} +{pid} +sleeping .* waiting for a command, for \d", line
            )
    assert found() == []


def test_a_session_that_was_closed_is_not_listed_whoever_has_its_records():
    with synk.session(2):
        records = SESSION.records
        assert len(found()) == 1
        child = os.fork()
        if not child:
            records.close()  # which is not its to do
            os._exit(0)
        os.waitpid(child, 0)
        assert len(found()) == 1
    assert found() == []
    assert records is not None


def test_a_stopped_rank_and_a_dead_one_are_seen():
    with synk.session(3):
        assert summing()(ROWS) == TOTAL
        pids = rank_pids()
        os.kill(pids[1], signal.SIGSTOP)
        os.kill(pids[2], signal.SIGKILL)
        wait_until(lambda: not psutil.pid_exists(pids[2]), 5, "death of the rank")
        report = block_of(ps.report(), os.getpid())
        assert re.search(rf"  1 +{pids[1]} +stopped ", report)
        assert re.search(rf"  2 +{pids[2]} +not there ", report)


def test_one_rank_alone_is_a_session():
    with synk.session(1):
        assert summing()(ROWS) == TOTAL
        assert "  1 rank, " in block_of(ps.report(), os.getpid())


@pytest.fixture
def only_of(monkeypatch):
    """Return a function after which `clean` sees the sessions of one master alone.

    Others, of tests that run at the same time, are not to be cleaned away.
    """

    def restrict(master: int) -> None:
        monkeypatch.setattr(
            clean,
            "find_sessions",
            lambda: [s for s in find_sessions() if s.owner.master == master],
        )
        monkeypatch.setattr(clean, "leftovers", list)

    return restrict


def test_another_process_sees_what_a_rank_computes(tmp_path, only_of):
    script = """
        synk.fork(2)
        call = acting(1, processes.arrive_and_stay)
        processes.print_pids()
        processes.print_on_arrival()
        call(ROWS)
    """
    with running(script, tmp_path) as other:
        master, zygote, rank = other.expect_pids()
        only_of(master)
        other.expect("arrived")
        done = subprocess.run(
            [sys.executable, "-m", "synk", "ps"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
        report = block_of(done.stdout, master)
        assert str(tmp_path)[:20] in report.splitlines()[0]
        doing = r"computing function 'acting' \(made in processes\.py:\d+\), for "
        assert re.search(rf" 1 +{rank} .* {doing}", report)
        assert re.search(rf" 0 +{master} .* waiting for the replies to", report)
        assert main(["clean"]) == 0  # which leaves a running session alone
        assert all(map(is_alive, [master, zygote, rank]))


def test_where_there_are_no_sessions_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(ps, "find_sessions", list)
    assert main(["ps"]) == 0
    assert capsys.readouterr().out == "no session of this user is running\n"


# -- clean


@pytest.fixture
def orphan():
    """Make a process that has the records of a session whose master is gone.

    It is stopped, as a zygote that does not see the end of its master; and there is a
    child that the script has forked, which is none of the session's.
    """
    ends, started = os.pipe()
    master = os.fork()
    if not master:
        records = Records(2)
        pids = []
        for _ in range(2):
            pid = os.fork()
            if not pid:
                os.setsid()  # or the kernel wakes what is stopped, as an orphaned group
                signal.alarm(60)
                while True:
                    signal.pause()
            pids.append(pid)
        records.note_zygote(pids[0])
        os.write(started, f"{pids[0]} {pids[1]} ".encode())
        os._exit(0)
    os.waitpid(master, 0)
    zygote, child = map(int, os.read(ends, 100).split())
    for end in (ends, started):
        os.close(end)
    os.kill(zygote, signal.SIGSTOP)
    yield SimpleNamespace(master=master, zygote=zygote, child=child)
    for pid in (zygote, child):
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_clean_kills_what_is_left_of_a_session_and_no_child_of_the_script(
    orphan, capsys, only_of
):
    only_of(orphan.master)
    what = f"kill zygote (pid {orphan.zygote}, "
    assert main(["clean", "--dry-run"]) == 0
    assert "would " + what in capsys.readouterr().out
    assert is_alive(orphan.zygote)
    assert main(["clean"]) == 0
    out = capsys.readouterr().out
    assert what in out
    assert f"master, {orphan.master}, is gone" in out
    wait_until(lambda: not is_alive(orphan.zygote), 5, "its end")
    assert is_alive(orphan.child)
    assert f"session of {orphan.master}:" not in ps.report()


def test_clean_leaves_a_session_alone(only_of):
    only_of(os.getpid())
    with synk.session(3):
        assert summing()(ROWS) == TOTAL
        os.kill(all_pids()[0], signal.SIGSTOP)
        assert len(found()) == 1
        assert main(["clean"]) == 0
        assert all(map(is_alive, all_pids()))
        os.kill(all_pids()[0], signal.SIGCONT)
        assert summing()(ROWS) == TOTAL


def test_a_number_that_is_used_again_is_not_the_master():
    with synk.session(2):
        SESSION.records.note_zygote(0)
        (session,) = found()
        later = session.owner._replace(started=session.owner.started - 1)
        session.owner = later
        assert session.is_orphan


def test_clean_removes_names_of_processes_that_are_gone(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(clean, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(clean, "orphans", list)
    gone = 2**22 + 1  # more than there can be
    mine = [f"synk-{os.getpid()}-1", f"sem.synk-{os.getpid()}-2", f"synk-{gone}"]
    left = [f"synk-{gone}-1", f"sem.synk-{gone}-2"]
    for name in (*mine, *left, "other"):
        (tmp_path / name).touch()
    main(["clean"])
    assert {path.name for path in tmp_path.iterdir()} == {*mine, "other"}
    assert f"remove {tmp_path}/{left[0]}\n" in capsys.readouterr().out


def test_clean_says_when_there_is_nothing(monkeypatch, capsys):
    monkeypatch.setattr(clean, "orphans", list)
    monkeypatch.setattr(clean, "leftovers", list)
    assert main(["clean"]) == 0
    assert capsys.readouterr().out == "nothing to clean\n"


def test_clean_says_what_does_not_end(monkeypatch, capsys):
    monkeypatch.setattr(clean, "_DEADLINE", 0.05)
    monkeypatch.setattr(clean, "orphans", lambda: [(os.getpid(), "rank 1")])
    monkeypatch.setattr(clean, "leftovers", list)
    monkeypatch.setattr(os, "kill", lambda pid, number: None)
    start = time.monotonic()
    assert main(["clean"]) == 1
    assert time.monotonic() - start < 2
    assert capsys.readouterr().out == "kill rank 1\nrank 1 does not end\n"


def test_what_ranks_have_done_is_shown_if_asked_for(capsys):
    f = summing()
    with synk.session(2):
        for _ in range(5):
            f(ROWS)
        assert main(["ps", "--events", "3"]) == 0
    block = block_of(capsys.readouterr().out, os.getpid())
    for rank in range(2):
        _, events = block.split(f"rank {rank}, before\n")
        lines = events.splitlines()[:3]
        assert [bool(re.match(r" +-?[\d.]+ ms  \w", line)) for line in lines] == [
            True
        ] * 3
    assert "  rank 0, before" in block
