"""What is left of a script, however it ends: nothing."""

from __future__ import annotations

import os
import signal
import textwrap

from processes import (
    is_alive,
    run_script,
    running_in_turn,
    segments_of,
    wait_until,
)

HOLDS = """
synk.fork(3)
data = synk.data(np.ones(1000))
values = pytensor.shared(np.ones(100))
assert summing()(ROWS) == TOTAL
synk.all_reduce(values, "sum")
processes.print_pids()
"""
"""A session with ranks that hold shared memory of every kind."""

IDLE = """
print("there", flush=True)
signal.pause()
"""

IN_A_CALL = """
call = acting({rank}, processes.arrive_and_stay)

threading.Thread(target=lambda: (processes.await_arrivals(1),
                                 print("there", flush=True)), daemon=True).start()
call(ROWS)
"""

IN_A_COLLECTIVE = """
from synk.ranks.session import SESSION

SESSION.run(processes.worker_late, 2)
threading.Thread(target=lambda: (processes.await_arrivals(1),
                                 print("there", flush=True)), daemon=True).start()
synk.all_reduce(values, "sum")
"""

PLACES = {
    "idle": IDLE,
    "master in a call": IN_A_CALL.format(rank=0),
    "rank in a call": IN_A_CALL.format(rank=1),
    "in a collective": IN_A_COLLECTIVE,
}


def assert_nothing_is_left(pids: list[int]) -> None:
    wait_until(lambda: not any(map(is_alive, pids)), 5, f"end of {pids}")
    # The kernel frees the memory of a process a moment after its end is seen.
    wait_until(lambda: not segments_of(pids), 5, "end of the shared memory")


KILLS = [
    *[(signal.SIGKILL, place) for place in PLACES],
    *[(signal.SIGTERM, place) for place in PLACES],
    (signal.SIGHUP, "idle"),
]


def test_nothing_outlives_a_master_that_is_killed(tmp_path):
    bodies = {
        f"{number.name} {place}": "import threading\n" + HOLDS + PLACES[place]
        for number, place in KILLS
    }
    with running_in_turn(bodies, tmp_path) as script:
        for number, place in KILLS:
            assert script.expect("turn") == f"{number.name} {place}"
            pids = script.expect_pids()
            assert len(pids) == 4
            script.expect("there")
            assert all(map(is_alive, pids))
            assert segments_of(pids)
            os.kill(pids[0], number)
            assert int(script.expect("ended", 5)) == -number
            assert_nothing_is_left(pids)
        assert script.wait() == 0


def kill_zygote_first(pids: list[int]) -> None:
    os.kill(pids[1], signal.SIGKILL)
    os.kill(pids[0], signal.SIGKILL)


def kill_group(pids: list[int]) -> None:
    os.killpg(pids[0], signal.SIGKILL)


def test_nothing_outlives_a_master_whose_zygote_or_group_is_killed(tmp_path):
    kills = {"zygote first": kill_zygote_first, "group": kill_group}
    with running_in_turn(dict.fromkeys(kills, HOLDS + IDLE), tmp_path) as script:
        for name, kill in kills.items():
            assert script.expect("turn") == name
            pids = script.expect_pids()
            script.expect("there")
            kill(pids)
            assert int(script.expect("ended", 5)) == -signal.SIGKILL
            assert_nothing_is_left(pids)
        assert script.wait() == 0


ENDINGS = {
    "the end": ("pass", 0),
    "sys.exit": ("sys.exit(4)", 4),
    "an exception": ("raise ValueError('unhandled')", 1),
    "an exception in a block": (
        "synk.close()\nwith synk.session(2):\n    raise ValueError('unhandled')",
        1,
    ),
    "os._exit": ("os._exit(6)", 6),
    "close": ("synk.close()\nsynk.close()", 0),
    "an error on a rank": ("acting(1, os.stat, 'no such file')(ROWS)", 1),
    "a dead rank": (
        "os.kill(processes.rank_pids()[1], signal.SIGKILL)\nsumming()(ROWS)",
        1,
    ),
    "abort": ("os.abort()", -signal.SIGABRT),
}


def test_nothing_outlives_a_script_that_ends(tmp_path):
    bodies = {name: HOLDS + code for name, (code, _) in ENDINGS.items()}
    errors = {}
    with running_in_turn(bodies, tmp_path) as script:
        for name, (_, status) in ENDINGS.items():
            assert script.expect("turn") == name
            pids = script.expect_pids()
            start = len(script.seen)
            assert int(script.expect("ended")) == status, script.seen
            errors[name] = "\n".join(script.seen[start:])
            assert_nothing_is_left(pids)
        assert script.wait() == 0
    assert "FileNotFoundError" in errors["an error on a rank"]
    assert "rank 1 of 3" in errors["an error on a rank"]
    assert "WorkerDied: rank 1" in errors["a dead rank"]
    for name in ("the end", "sys.exit", "os._exit", "close"):
        assert errors[name] == f"ended {ENDINGS[name][1]}"


def test_what_ranks_print_comes_out_once(tmp_path):
    result = run_script(
        """
        print("before", end=" ")
        synk.fork(3)
        acting(None, print, "rank")(ROWS)
        synk.close()
        print("after")
        """,
        tmp_path,
    )
    assert result.returncode == 0, result
    assert result.stdout.count("before") == 1
    assert result.stdout.count("after") == 1
    assert result.stdout.count("rank") == 3
    assert result.stderr == ""


def test_a_whole_script_with_warnings_as_errors(tmp_path):
    # In a process with threads, Python 3.12 and later warn of every fork.
    result = run_script(
        """
        import threading, warnings
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", synk.OversubscriptionWarning)  # is meant here
        done = threading.Event()
        thread = threading.Thread(target=done.wait)
        thread.start()
        with synk.session(3):
            print("total", summing()(ROWS) == TOTAL)
        done.set()
        thread.join()
        """,
        tmp_path,
    )
    assert result.returncode == 0, result
    assert result.stdout == "total True\n"
    assert result.stderr == ""


def test_nothing_is_written_beside_the_script(tmp_path):
    # Functions travel to the ranks through memory.
    body = """
    for _ in range(2):
        with synk.session(2):
            synk.distribute()
            assert summing()(ROWS) == TOTAL
    print("done", os.listdir("."))
    """
    (tmp_path / "here").mkdir()
    body = f"import os\nos.chdir({str(tmp_path / 'here')!r})\n" + textwrap.dedent(body)
    result = run_script(body, tmp_path)
    assert result.stdout == "done []\n", result


def test_a_script_runs_with_its_standard_streams_closed(tmp_path):
    body = """
    for stream in (0, 1, 2):
        os.close(stream)
    sys.stdin = sys.stdout = sys.stderr = None
    with synk.session(3):
        done = summing()(ROWS) == TOTAL
    with open(sys.argv[0] + ".out", "w") as file:
        file.write(f"total {done}")
    """
    result = run_script(body, tmp_path)
    assert result.returncode == 0, result
    assert (tmp_path / "script.py.out").read_text() == "total True"


def test_a_script_with_many_open_files_can_fork_and_close(tmp_path):
    result = run_script(
        """
        import resource
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert hard >= 1500
        resource.setrlimit(resource.RLIMIT_NOFILE, (1500, hard))
        files = [open(os.devnull) for _ in range(1100)]
        for _ in range(2):
            synk.fork(3)
            assert summing()(ROWS) == TOTAL
            try:
                acting(1, os._exit, 3)(ROWS)
            except synk.WorkerDied as error:
                print("died", error.exitcode)
            synk.close()
        """,
        tmp_path,
    )
    assert result.stdout == "died 3\ndied 3\n", result
    assert result.returncode == 0
