"""Whole scripts: what they print, how they end, what signals and children do."""

import json
import os
import re
import shutil
import signal
import textwrap

import pytest
from processes import (
    ROWS,
    TOTAL,
    Script,
    acting,
    all_pids,
    await_end,
    is_alive,
    running,
    segments_of,
    summing,
    wait_until,
)

import synk

BEGINNER = """
import gc, json
with synk.session(2):  # loads the kernels: once, for all
    synk.all_reduce(pytensor.shared(np.ones(5)), "sum")
gc.freeze()  # else the last collection of each fork copies all pages: 0.4 s
print("ready", flush=True)
for _line in sys.stdin:
    processes.reset()
    _pid = os.fork()
    if not _pid:
        break
    _status = os.waitstatus_to_exitcode(os.waitpid(_pid, 0)[1])
    print("ended", _status, flush=True)
else:
    sys.exit()
os.setsid()
signal.alarm(60)  # nobody else ends it if the test fails
_body = json.loads(_line)
exec(compile(_body, __file__, "exec"))
"""


class Beginner:
    """Runs scripts one after the other, each in a fork of one that has imported all."""

    def __init__(self, script: Script) -> None:
        self.script = script
        script.expect("ready", 60)

    def begin(self, body: str) -> Script:
        """Begin a script; `Script.expect` reads what it prints."""
        line = json.dumps(textwrap.dedent(body)) + "\n"
        os.write(self.script.process.stdin.fileno(), line.encode())
        return self.script

    def ended(self) -> int:
        """Wait for the script's end; return its exit status."""
        return int(self.script.expect("ended"))


@pytest.fixture(scope="module")
def beginner(tmp_path_factory):
    with running(BEGINNER, tmp_path_factory.mktemp("scripts")) as script:
        yield Beginner(script)
        script.process.stdin.close()
        assert script.wait() == 0


@pytest.fixture(autouse=True)
def world(beginner):
    """Assert that no process is left but the one that begins scripts."""
    yield
    synk.close()
    left = [pid for pid in all_pids() if pid != beginner.script.pid]
    assert not left


def assert_nothing_is_left(pids: list[int]) -> None:
    await_end(pids)
    # The kernel frees the memory of a process a moment after its end is seen.
    wait_until(lambda: not segments_of(pids), 5, "end of the shared memory")


# -- scripts that end

HOLDS = """
import threading
forked, held = threading.Event(), []

def hold():
    "Have ranks that hold shared memory of every kind."
    synk.fork(3)
    held.extend([synk.data(np.ones(1000)), pytensor.shared(np.ones(100))])
    assert summing()(ROWS) == TOTAL
    synk.all_reduce(held[1], "sum")
    processes.print_pids()

def begin(*then, daemon=False):
    work = lambda: [do() for do in (hold, forked.set, *then)]
    thread = threading.Thread(target=work, daemon=daemon)
    thread.start()
    return thread
"""

ENDINGS = {
    "the end": ("hold()", 0, ""),
    "sys.exit": ("hold(); sys.exit(4)", 4, ""),
    "os._exit": ("hold(); os._exit(6)", 6, ""),
    "abort": ("hold(); os.abort()", -signal.SIGABRT, ".*"),
    "close": ("hold(); synk.close(); synk.close()", 0, ""),
    "an exception": ("hold(); raise ValueError('of mine')", 1, ".*ValueError: of mine"),
    "an error on a rank": (
        "hold(); acting(1, os.stat, 'no such file')(ROWS)",
        1,
        ".*FileNotFoundError.*rank 1 of 3.*",
    ),
    "before its thread": ("begin(lambda: time.sleep(0.3))", 0, ""),
    "and leaves its thread": (
        "begin(lambda: time.sleep(60), daemon=True); forked.wait()",
        0,
        "",
    ),
    "by a handler of SIGTERM": (
        """
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        hold()
        terminate = lambda: os.kill(os.getpid(), signal.SIGTERM)
        sent = lambda: (processes.await_arrivals(1), terminate())
        threading.Thread(target=sent, daemon=True).start()
        acting(1, processes.arrive_and_stay)(ROWS)
        """,
        7,
        "",
    ),
    "in pytest -x": (
        """
        import pytest
        path = os.path.dirname(__file__) + "/test_of_a_user.py"
        with open(path, "w") as file:
            file.write("import __main__\\n")
            file.write("def test_one(): __main__.hold(); assert False\\n")
            file.write("def test_two(): assert False\\n")
        sys.exit(pytest.main(["-xsq", "-p", "no:cacheprovider", path]))
        """,
        1,
        ".*1 failed.*",
    ),
    "after children that ended": (
        """
        hold()
        for ending in (lambda: os.kill(os.getpid(), 9), sys.exit, lambda: None):
            pid = os.fork()
            if pid == 0:
                ending()
                break  # and on to its end, through all exit handlers
            os.waitpid(pid, 0)
            assert summing()(ROWS) == TOTAL
            assert all(map(processes.is_alive, processes.all_pids()))
        """,
        0,
        "",
    ),
}


@pytest.mark.parametrize(("body", "status", "says"), ENDINGS.values(), ids=[*ENDINGS])
def test_nothing_outlives_a_script_that_ends(body, status, says, beginner):
    script = beginner.begin(HOLDS + textwrap.dedent(body))
    pids = script.expect_pids()
    start = len(script.seen)
    assert beginner.ended() == status, script.seen
    said = "\n".join(script.seen[start:-1])
    assert re.fullmatch(says, said, re.S), said
    assert_nothing_is_left(pids)


WORKS = {
    "prints": """
        sys.stdout = os.fdopen(os.dup(1), "w")  # with a buffer, which ranks have too
        print("before", end=" ")
        synk.fork(3)
        acting(None, print, "rank")(ROWS)
        synk.close()
        print("after")
    """,
    # In a process with threads, Python 3.12 and later warn of every fork.
    "warnings are errors": """
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
    # Functions travel to the ranks through memory.
    "writes no files": """
        os.mkdir(os.path.dirname(__file__) + "/here")
        os.chdir(os.path.dirname(__file__) + "/here")
        for _ in range(2):
            with synk.session(2):
                synk.distribute()
                assert summing()(ROWS) == TOTAL
        print("files", os.listdir("."))
    """,
    "many open files": """
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
    "handlers": """
        caught = []

        def reap(*_):
            "Reap everything, which hides how a child has ended."
            caught.append(os.getpid())
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                pass

        def catches(pid, number):
            status = open(f"/proc/{pid}/status").read()
            return int(status.split("SigCgt:")[1].split()[0], 16) >> (number - 1) & 1

        signal.signal(signal.SIGCHLD, reap)
        signal.signal(signal.SIGUSR2, lambda *_: None)
        synk.fork(3)
        pids, numbers = processes.all_pids(), (signal.SIGUSR2, signal.SIGCHLD)
        assert summing()(ROWS) == TOTAL
        print("handlers", sum(catches(pid, n) for pid in pids for n in numbers))
        os.kill(pids[2], signal.SIGKILL)
        try:
            summing()(ROWS)
        except synk.WorkerDied as error:
            print("died", error.rank, error.signal)
        synk.close()
        print("in others", set(caught) - {os.getpid()}, flush=True)
    """,
}

PRINTED = {
    "warnings are errors": ["total True"],
    "writes no files": ["files []"],
    "many open files": ["died 3", "died 3"],
    "handlers": ["handlers 0", "died 2 9", "in others set()"],
}


def test_scripts_print_once_write_nothing_and_keep_their_handlers(beginner):
    printed = {}
    for name, body in WORKS.items():
        start = len(beginner.script.seen)
        script = beginner.begin(body)
        assert beginner.ended() == 0, script.seen
        printed[name] = script.seen[start:-1]
    text = " ".join(printed.pop("prints"))
    assert [text.count(word) for word in ("before", "rank", "after")] == [1, 3, 1]
    assert printed == PRINTED


KEEPER = """
import ctypes
ctypes.CDLL(None).prctl(36, 1)  # orphans are its children, and not sent SIGHUP
if os.fork():
    signal.pause()
synk.fork(3)
processes.print_pids()
child = os.fork()
if child == 0:
    signal.alarm(30)
    signal.pause()
print("beside", child, os.getppid(), flush=True)
if {stops}:
    os.kill(processes.all_pids()[0], signal.SIGSTOP)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("stops", [False, True])
def test_a_child_of_the_script_does_not_keep_ranks_alive(stops, beginner):
    """It has copies of the pipes; idle ranks end without the zygote's help, too."""
    script = beginner.begin(KEEPER.format(stops=stops))
    _, zygote, *ranks = script.expect_pids()
    beside = list(map(int, script.expect("beside").split()))
    assert_nothing_is_left(ranks)
    if stops:
        os.kill(zygote, signal.SIGCONT)
    assert_nothing_is_left([zygote])
    for pid in beside:
        assert is_alive(pid)
        os.kill(pid, signal.SIGKILL)
    assert beginner.ended() == -signal.SIGKILL


# -- signals

INTERRUPTED = """
def too_late(*_):
    raise TimeoutError("alarm")

def tried(rank, action, count=1):
    call = acting(rank, action)
    processes.reset()
    processes.print_on_arrival(count)
    try:
        call(ROWS)
    except (KeyboardInterrupt, TimeoutError) as error:
        print("interrupted", type(error).__name__, flush=True)
    values = pytensor.shared(np.ones(5))
    synk.all_reduce(values, "sum")
    assert (synk.get_value(1, values) == 2).all(), synk.get_value(1, values)
    assert summing()(ROWS) == TOTAL

signal.signal(signal.SIGALRM, too_late)
synk.fork(2)
processes.print_pids()
tried(0, processes.arrive_and_stay)
tried(None, processes.arrive_and_stay, 2)
tried(1, processes.arrive_and_compute)
tried(1, processes.arrive_and_stay)
synk.close()
print("closed", flush=True)
"""


def test_ctrl_c_and_signals_whose_handlers_raise_stop_all_ranks(tmp_path):
    with running(INTERRUPTED, tmp_path, terminal=True) as script:
        pids = script.expect_pids()
        for _ in range(3):
            script.expect("arrived")
            os.write(script.terminal, b"\x03")
            assert script.expect("interrupted") == "KeyboardInterrupt"
        script.expect("arrived")
        os.kill(pids[0], signal.SIGALRM)
        assert script.expect("interrupted") == "TimeoutError"
        script.expect("closed")
        assert script.wait() == 0
    assert_nothing_is_left(pids)


STOPPED = """
import threading

def pending(pid):
    "Tell whether SIGINT waits for a process to go on."
    status = open(f"/proc/{pid}/status").read()
    return int(status.split("ShdPnd:")[1].split()[0], 16) & 2

synk.fork(2)
call = acting(1, processes.arrive_and_stay)
processes.release()
assert call(ROWS) == TOTAL  # compiled
processes.reset()
pid = processes.rank_pids()[1]
os.kill(pid, signal.SIGSTOP)
ended = []

def interrupt():
    time.sleep(0.2)  # until the call waits for the rank
    os.kill(os.getpid(), signal.SIGINT)
    processes.wait_until(lambda: ended or pending(pid), 10, "the rank's signal")
    os.kill(pid, signal.SIGCONT)

thread = threading.Thread(target=interrupt)
thread.start()
try:
    call(ROWS)
except KeyboardInterrupt:
    ended.append(1)
    print("interrupted", flush=True)
thread.join()
assert summing()(ROWS) == TOTAL
"""


def test_an_interrupt_before_a_rank_has_begun_is_not_lost(beginner):
    """The rank is asleep, as one may be that shares its core, when the signal comes."""
    script = beginner.begin(STOPPED)
    script.expect("interrupted")
    assert beginner.ended() == 0


def test_sigint_does_nothing_to_a_rank_or_the_zygote():
    with synk.session(3):
        call = summing()
        assert call(ROWS) == TOTAL
        before = all_pids()[-3:]
        for pid in before:
            os.kill(pid, signal.SIGINT)
        assert call(ROWS) == TOTAL
        # One that computes may get it late, for the command before.
        assert acting(1, interrupt_oneself)(ROWS) == TOTAL
        assert all_pids()[-3:] == before


def interrupt_oneself() -> None:
    for _ in range(100):
        signal.raise_signal(signal.SIGINT)


# -- what scripts share

JOBS = """
from pytensor.compile.mode import Mode

twin = os.fork()
x = pt.dmatrix("x")
f = synk.function([x], pt.exp(x), mode=Mode("c|py", None))
synk.fork(2)
processes.note(20 + bool(twin), 1)  # both begin to compile at once
both = lambda: processes.board(20) and processes.board(21)
processes.wait_until(both, 30, "the other job")
np.testing.assert_allclose(f(ROWS), np.exp(ROWS))
synk.close()
if twin:
    assert os.waitpid(twin, 0)[1] == 0
    print("right", flush=True)
"""


@pytest.mark.skipif(not shutil.which("g++"), reason="there is no C compiler")
def test_two_jobs_share_a_compile_cache(tmp_path):
    flags = f"{os.environ.get('PYTENSOR_FLAGS', '')},base_compiledir={tmp_path}/code"
    with running(JOBS, tmp_path, PYTENSOR_FLAGS=flags.lstrip(",")) as script:
        script.expect("right", 90)
        assert script.wait(20) == 0
    assert any((tmp_path / "code").rglob("*.so"))
