"""``python -m synk``: info, ps, clean; and scripts, beside ``python script.py``."""

import os
import re
import runpy
import signal
import subprocess
import sys
import textwrap
import tomllib
from importlib import metadata
from pathlib import Path

import psutil
import pytest
from places import ROOT
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


@pytest.fixture
def command(capsys, monkeypatch):
    """Return what runs `python -m synk` here: its status, and what it prints."""

    def run(*argv: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["synk", *argv])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            runpy.run_module("synk", run_name="__main__")
        printed = capsys.readouterr()
        return ended.value.code or 0, printed.out, printed.err

    return run


# -- info ------------------------------------------------------------------------------


def rows(text: str, title: str) -> dict[str, str]:
    """Return one section of a report by its labels."""
    section = text.partition(f"{title}\n")[2].partition("\n\n")[0].splitlines()
    column = re.match(r"  \S+(?: \S+)*  +", section[0]).end()
    return {line[:column].strip(): line[column:].strip() for line in section}


def cores_of(text: str) -> set[int]:
    """Return the cores of a line such as "cores 0-3, 5, 2 threads"."""
    ranges = re.findall(r"(\d+)(?:-(\d+))?(?= ?,)", text)
    return {core for a, b in ranges for core in range(int(a), int(b or a) + 1)}


def test_info_says_what_fork_would_do(command):
    usable = len(os.sched_getaffinity(0))
    status, text, err = command("info")
    assert (status, err) == (0, "")
    assert max(map(len, text.splitlines())) < 100
    versions = rows(text, "versions")
    try:
        assert versions["synk"] == metadata.version("synk") == synk.__version__
    except metadata.PackageNotFoundError:  # a checkout that is only on the path
        assert versions["synk"] == "not installed"
    for package in ("pytensor", "numpy", "numba", "threadpoolctl"):
        assert versions[package] == metadata.version(package)
    assert versions["python"].startswith(".".join(map(str, sys.version_info[:3])))
    assert int(rows(text, "synk.fork()")["ranks"].split(":")[0]) <= usable
    assert "note" not in rows(text, "synk.fork()")
    many = usable + 298
    text = command("info", "-n", str(many))[1]
    assert "more ranks than cores" in rows(text, f"synk.fork({many})")["note"]
    assert len(text.splitlines()) < 70


@pytest.mark.parametrize("n", [1, 3])
def test_the_cores_announced_are_those_that_fork_gives(n, command):
    plan = rows(command("info", "-n", str(n))[1], f"synk.fork({n})")
    with synk.session(n):
        assert summing()(ROWS) == TOTAL  # when all have begun
        given = [os.sched_getaffinity(pid) for pid in (0, *rank_pids().values())]
        status, text, _ = command("info")
    assert plan["ranks"] == f"{n}: this process and {n - 1} forked"
    for rank, cores in enumerate(given):
        assert re.fullmatch(r"cores? [\d, -]+, \d+ threads?", plan[f"rank {rank}"])
        assert cores_of(plan[f"rank {rank}"].rsplit(",", 1)[0] + ",") == cores
    assert f"rank {n}" not in plan
    assert status == 1
    assert "forked already" in rows(text, "synk.fork()")["refused"]


def test_info_keeps_nothing_and_says_that_there_is_no_memory(command, monkeypatch):
    def refuse(fd, offset, length):
        raise OSError(28, "No space left on device")

    command("info", "-n", "3")
    before = sorted(os.listdir("/proc/self/fd"))
    assert "refused" not in rows(command("info", "-n", "3")[1], "synk.fork(3)")
    assert sorted(os.listdir("/proc/self/fd")) == before
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    status, text, _ = command("info", "-n", "3")
    assert status == 1
    assert rows(text, "synk.fork(3)")["refused"].startswith("no room for ")


def test_info_is_of_the_environment_and_imports_no_optional_package(tmp_path):
    folder = tmp_path / "jax-9.8.7.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: jax\nVersion: 9.8.7\n"
    )
    (tmp_path / "jax.py").write_text("raise SystemExit('jax was imported')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    flags = "floatX=float32,mode=FAST_COMPILE"
    core = min(os.sched_getaffinity(0))
    done = subprocess.run(
        [sys.executable, "-m", "synk", "info", "-n", "3"],
        env=os.environ | {"PYTHONPATH": path, "PYTENSOR_FLAGS": flags},
        preexec_fn=lambda: os.sched_setaffinity(0, [core]),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert rows(done.stdout, "versions")["jax"] == "9.8.7"
    settings = rows(done.stdout, "pytensor")
    assert settings["floatX"] == "float32"
    assert settings["mode"].startswith("FAST_COMPILE,")
    cores = rows(done.stdout, "cores")
    assert cores["affinity"] == str(core)
    assert cores["usable"] == f"1: {core}"
    assert "RAM" in done.stdout
    for rank in range(3):
        plan = rows(done.stdout, "synk.fork(3)")
        assert plan[f"rank {rank}"] == f"core {core}, 1 thread"


def test_wrong_commands_are_usage_errors(command):
    status, _, err = command("info", "-n", "0")
    assert status == 2
    assert "-n must be at least 1, got 0" in err
    for argv in ([], ["nothing"]):
        status, _, err = command(*argv)
        assert status == 2
        assert "usage: python -m synk" in err


# -- ps and clean ----------------------------------------------------------------------


def block_of(report: str, pid: int) -> list[str]:
    """Return the part of a report that is about one session."""
    blocks = [b for b in report.split("\n\n") if b.startswith(f"session of {pid}: ")]
    assert len(blocks) == 1, report
    return blocks[0].splitlines()


def test_a_session_is_listed_with_its_ranks_and_memory(command):
    mine = f"session of {os.getpid()}: "
    assert mine not in command("ps")[1]
    data = synk.data(ROWS.repeat(100_000, axis=0))
    call = summing()
    with synk.session(3):
        assert call(ROWS) == TOTAL
        assert call(data) == pytest.approx(100_000 * TOTAL)
        zygote, *_ = all_pids()
        pids = rank_pids()
        status, report, _ = command("ps", "--events", "3")
        lines = block_of(report, os.getpid())
        assert status == 0
        assert re.fullmatch(
            rf"  3 ranks, \d+ MiB in \d+ segments, zygote {zygote}", lines[1]
        )
        assert int(lines[1].split()[2]) >= data.data.nbytes >> 20
        assert lines[2].split() == ["rank", "pid", "state", "CPU", "doing"]
        assert re.search(rf" 0 +{os.getpid()} .* running the script, for", lines[3])
        for rank in (1, 2):  # who waits looks about now and then, and is running then
            is_there = rf" {rank} +{pids[rank]} +(sleeping|running) "
            waits = rf"{is_there}.* waiting for a command, for \d"
            assert re.search(waits, lines[3 + rank])
        for rank in range(3):  # what they have done before
            place = lines.index(f"  rank {rank}, before")
            for line in lines[place + 1 : place + 4]:
                assert re.match(r" +-?[\d.]+ ms  \w", line)
        os.kill(pids[1], signal.SIGSTOP)
        os.kill(pids[2], signal.SIGKILL)
        wait_until(lambda: not psutil.pid_exists(pids[2]), 5, "death of the rank")
        lines = block_of(command("ps")[1], os.getpid())
        assert re.search(rf"  1 +{pids[1]} +stopped ", lines[4])
        assert re.search(rf"  2 +{pids[2]} +not there ", lines[5])
    assert mine not in command("ps")[1]
    with synk.session(1):
        assert call(ROWS) == TOTAL
        assert "  1 rank, " in block_of(command("ps")[1], os.getpid())[1]


COMPUTES = """
import ctypes
# Whoever is left has a parent in this session: else the kernel wakes what is stopped.
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
child = os.fork()
if child:
    os.waitpid(child, 0)
    print("gone", flush=True)
    signal.pause()
os.setpgid(0, 0)
signal.alarm(60)
synk.fork(2)
call = acting(1, processes.arrive_and_stay)
processes.print_pids()
processes.print_on_arrival()
call(ROWS)
"""


def test_others_see_what_a_rank_computes_and_clean_what_is_left(tmp_path, command):
    gone = 2**22 + 1  # more than there can be
    names = [f"synk-{gone}-1", f"sem.synk-{gone}-2", f"synk-{gone}"]
    left, other, unlike = (Path("/dev/shm", name) for name in names)
    with running(COMPUTES, tmp_path) as script:
        master, zygote, rank = script.expect_pids()
        script.expect("arrived")
        lines = block_of(command("ps")[1], master)
        assert str(tmp_path)[:20] in lines[0]
        doing = r"computing function 'acting' \(made in processes\.py:\d+\), for "
        assert re.search(rf" 1 +{rank} .* {doing}", lines[4])
        assert re.search(rf" 0 +{master} .* waiting for the replies to", lines[3])
        try:
            for path in (left, other, unlike):
                path.touch()
            status, text, _ = command("clean")  # which leaves a running session alone
            assert status == 0
            assert str(zygote) not in text
            assert all(map(is_alive, [master, zygote, rank]))
            assert (left.exists(), other.exists()) == (False, False)
            assert f"remove {left}\n" in text
            assert unlike.exists()
        finally:
            for path in (left, other, unlike):
                path.unlink(missing_ok=True)
        os.kill(zygote, signal.SIGSTOP)  # so that it does not see the master's end
        os.kill(master, signal.SIGKILL)
        script.expect("gone")
        what = f"kill zygote (pid {zygote}, "
        try:
            _, text, _ = command("clean", "--dry-run")
            assert "would " + what in text
            assert is_alive(zygote)
            _, text, _ = command("clean")
            assert what in text
            assert f"master, {master}, is gone" in text
            wait_until(lambda: not is_alive(zygote), 5, "its end")
            wait_until(lambda: not is_alive(rank), 5, "the end of the rank")
        finally:
            for pid in (master, zygote, rank):
                if is_alive(pid):
                    os.kill(pid, signal.SIGKILL)
    assert f"session of {master}: " not in command("ps")[1]
    assert str(zygote) not in command("clean")[1]


# -- scripts ---------------------------------------------------------------------------


FAST = {"PYTENSOR_FLAGS": "mode=FAST_COMPILE"}


def run(*args: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *map(str, args)],
        env=os.environ | FAST | environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
    )


def write(body: str, path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(body))
    return path


@pytest.fixture
def folder(tmp_path):
    """A folder with the script in another folder of it, not a package."""
    write("from_beside = 'found'\n", tmp_path / "scripts" / "beside.py")
    return tmp_path


def assert_same_as_python(body: str, folder: Path, *args: str):
    script = write(body, folder / "scripts" / "script.py").relative_to(folder)
    # Without them where Python comes after; all else is to be equal.
    plain = run(script, *args, cwd=folder)
    ours = run("-m", "synk", script, *args, cwd=folder)
    assert ours.stdout == plain.stdout
    assert ours.stderr == plain.stderr
    assert ours.returncode == plain.returncode
    return ours


def test_a_script_sees_what_it_sees_in_python(folder):
    body = """
    '''A docstring.'''
    import atexit
    import sys
    import beside
    print(sys.argv, sys.path[0], beside.from_beside, __doc__)
    print(sorted(globals()))
    print(__name__, __file__, __package__, __spec__, __cached__, __builtins__)
    print(type(__loader__).__name__, __loader__.path, __annotations__)
    print(vars(sys.modules["__main__"]) is globals())
    atexit.register(lambda: print("at exit:", late))
    class A: pass
    print(A, A.__module__)
    late = 5
    print("to stderr", file=sys.stderr)
    sys.exit(3)
    """
    done = assert_same_as_python(body, folder, "-n", "2", "--help", "info")
    assert done.returncode == 3
    assert "['scripts/script.py', '-n', '2', '--help', 'info']" in done.stdout
    assert done.stdout.endswith("at exit: 5\n")


ENDS = {
    "a syntax error": "x = 1\nif x print(x)",
    "Ctrl-C": """
def inner():
    return {}["missing"]
def outer():
    try:
        inner()
    except KeyError as error:
        raise KeyboardInterrupt("with a cause") from error
outer()
""",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_script_ends_as_in_python(end, folder):
    done = assert_same_as_python(ENDS[end], folder)
    assert done.returncode != 0
    assert "synk" not in done.stderr
    if end == "Ctrl-C":
        assert done.returncode == -signal.SIGINT


def test_names_are_there_from_the_first_line_on_and_in_what_it_starts(folder):
    body = """
    import theano, theano.tensor as T, synkhronos as synk
    import multiprocessing, subprocess, sys
    import numpy as np

    class Twice(theano.Op):  # ranks get it by value, as it is defined in __main__
        __props__ = ()
        def make_node(self, x):
            return theano.Apply(self, [x], [x.type()])
        def perform(self, node, inputs, outputs):
            outputs[0][0] = times * inputs[0]

    def of(name):
        return sys.modules[name].__spec__.name

    times = 2
    if __name__ == "__main__":
        x = T.matrix("x")
        f = synk.function([x], (Twice()(x).sum(axis=1), "gather"))
        print(synk.fork(2), f(np.eye(3)))
        synk.close()
        child = "import synkhronos, theano.tensor as T; print(T.__name__, synkhronos)"
        sys.stdout.flush()
        subprocess.run([sys.executable, "-c", child], check=True)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.map(of, ["theano.tensor", "synkhronos"]))
    """
    script = write(body, folder / "script.py")
    done = run("-m", "synk", script, cwd=folder)
    assert done.returncode == 0, done.stderr
    ranks, child, pool = done.stdout.splitlines()
    assert ranks == "2 [2. 2. 2.]"
    assert child.startswith("synk.theano.tensor <module 'synk.synkhronos'")
    assert pool == "['synk.theano.tensor', 'synk.synkhronos']"


def test_a_package_that_is_there_comes_first(folder):
    write("whose = 'theirs'", folder / "elsewhere" / "synkhronos.py")
    child = "import synkhronos; print(synkhronos.whose)"
    body = f"""
    import subprocess, sys
    import theano
    {child}
    print(theano.__name__)
    subprocess.run([sys.executable, "-c", {child!r}], check=True)
    """
    script = write(body, folder / "script.py")
    paths = [str(folder / "elsewhere"), os.environ.get("PYTHONPATH", "")]
    done = run("-m", "synk", script, cwd=folder, PYTHONPATH=os.pathsep.join(paths))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["synk.theano", "theirs", "theirs"]


def test_the_extras_are_those_that_the_page_lists():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    page = (ROOT / "docs" / "installation.rst").read_text()
    table = page.split("===\n")[1]
    assert set(re.findall(r"``(\w+)``  ", table)) <= set(
        project["optional-dependencies"]
    )
    assert project["requires-python"] == ">=3.11"
    (pytensor,) = (d for d in project["dependencies"] if d.startswith("pytensor"))
    assert ">=2.38" in pytensor
    assert "<4" in pytensor
