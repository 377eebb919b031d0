"""`python -m synk` and its info command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types
from importlib import metadata
from pathlib import Path

import pytest

import synk
from synk.__main__ import main
from synk.commands import info
from synk.errors import SharedMemoryFull
from synk.memory import huge
from synk.memory.limits import Limit
from synk.ranks.session import SESSION
from synk.workers import affinity


def rows(text: str, title: str) -> dict[str, str]:
    """Return one section of a report by its labels."""
    section = text.partition(f"{title}\n")[2].partition("\n\n")[0]
    column = 2 + info._LABEL
    return {
        line[:column].strip(): line[column:].strip() for line in section.splitlines()
    }


def run(*args: str, setup: str = "pass", **environment: str):
    """Run `python -m synk` in a process of its own, after a line of Python."""
    code = f"import os, sys; {setup}; from synk.__main__ import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )


def test_info_runs_as_a_command_and_says_which_versions_are_installed():
    done = subprocess.run(
        [sys.executable, "-m", "synk", "info"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    versions = rows(done.stdout, "versions")
    assert versions["synk"] == synk.__version__
    for package in ("pytensor", "numpy", "numba", "threadpoolctl"):
        assert versions[package] == metadata.version(package)
    assert versions["python"].startswith(".".join(map(str, sys.version_info[:3])))


@pytest.mark.parametrize("n", [None, 1, 3, 300])
def test_the_report_is_narrower_than_100_columns_and_not_endless(n):
    lines = info.report(n).splitlines()
    assert max(map(len, lines)) < 100
    assert len(lines) < 70


def test_long_values_go_on_below_themselves():
    text = info._line("label", "word " * 60)
    first, second, *_ = text.splitlines()
    assert len(first) < 100
    assert second.index("word") == first.index("word")
    assert text.split() == ["label", *["word"] * 60]


def test_optional_packages_are_named_without_being_imported(tmp_path):
    folder = tmp_path / "jax-9.8.7.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: jax\nVersion: 9.8.7\n"
    )
    (tmp_path / "jax.py").write_text("raise SystemExit('jax was imported')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = run("info", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert rows(done.stdout, "versions")["jax"] == "9.8.7"


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_cores_announced_are_those_that_fork_gives(n):
    plan = rows(info.report(n), f"synk.fork({n})")
    with synk.session(n):
        given = [info.ranges(place.cores) for place in SESSION.places]
    assert plan["ranks"] == f"{n}: this process and {n - 1} forked"
    assert len(given) == n
    for rank, cores in enumerate(given):
        assert re.fullmatch(rf"cores? {cores}, \d+ threads?", plan[f"rank {rank}"])
    assert f"rank {n}" not in plan


def test_by_default_there_is_a_rank_for_every_usable_core():
    usable = affinity.usable_cores()
    plan = rows(info.report(), "synk.fork()")
    assert plan["ranks"].startswith(f"{len(usable)}:")
    assert "note" not in plan
    more = info.report(len(usable) + 1)
    assert (
        "more ranks than cores" in rows(more, f"synk.fork({len(usable) + 1})")["note"]
    )


def test_the_affinity_of_the_process_is_respected():
    core = min(os.sched_getaffinity(0))
    done = run("info", setup=f"os.sched_setaffinity(0, [{core}])")
    cores = rows(done.stdout, "cores")
    assert cores["affinity"] == str(core)
    assert cores["usable"] == f"1: {core}"
    assert rows(done.stdout, "synk.fork()")["rank 0"] == f"core {core}, 1 thread"


def test_a_cgroup_quota_is_shown_and_limits_the_ranks(monkeypatch):
    monkeypatch.setattr(affinity, "_cgroup_quota", lambda: 0.5)
    text = info.report()
    assert rows(text, "cores")["cgroup quota"] == "0.5 cores"
    assert rows(text, "synk.fork()")["ranks"] == "1: this process and 0 forked"


def test_it_says_why_fork_would_be_refused_in_a_forked_process():
    assert info.refusal() is None
    with synk.session(1):
        assert "forked already" in rows(info.report(), "synk.fork()")["refused"]
        assert main(["info"]) == 1
    assert info.refusal() is None


def test_asking_whether_fork_would_be_refused_keeps_nothing():
    info.refusal(3)
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(5):
        info.refusal(3)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_it_says_that_fork_would_fail_for_want_of_shared_memory(monkeypatch):
    def full(*_, **__):
        raise SharedMemoryFull("no room for 81,920 bytes of shared memory")

    monkeypatch.setattr(info, "Control", full)
    refused = rows(info.report(), "synk.fork()")["refused"]
    assert refused == "no room for 81,920 bytes of shared memory"


def test_every_limit_of_memory_is_shown(monkeypatch):
    limits = [
        Limit(None, 16 << 30, 12 << 30),
        Limit(Path("/sys/fs/cgroup/job"), 3 << 29, 64 << 20),
    ]
    monkeypatch.setattr(info, "memory_limits", lambda: limits)
    assert info._memory()[:-1] == [
        ("RAM", "16.0 GiB, 12.0 GiB available"),
        ("cgroup limit", "1.5 GiB, 64 MiB available (/sys/fs/cgroup/job)"),
    ]


def test_it_says_whether_rows_lie_in_huge_pages(monkeypatch):
    monkeypatch.setattr(huge, "SIZE", 1 << 21)
    monkeypatch.setattr(huge, "are_given", lambda: True)
    assert info._memory()[-1] == ("huge pages", "given for rows, 2 MiB each")
    monkeypatch.setattr(huge, "are_given", lambda: False)
    for word, advice in {"deny": "echo never > /sys", "never": "to 'always'"}.items():
        monkeypatch.setattr(huge, "setting", lambda word=word: word)
        text = info._memory()[-1][1]
        assert f"shmem_enabled is {word!r}" in text
        assert advice in text
    monkeypatch.setattr(huge, "SIZE", 0)
    assert "built without" in info._memory()[-1][1]


def test_pytensors_settings_are_those_of_the_environment():
    done = run("info", PYTENSOR_FLAGS="floatX=float32,mode=FAST_COMPILE")
    settings = rows(done.stdout, "pytensor")
    assert settings["floatX"] == "float32"
    assert settings["mode"].startswith("FAST_COMPILE,")


def test_the_number_of_ranks_must_be_positive(capsys):
    with pytest.raises(SystemExit) as exit:
        main(["info", "-n", "0"])
    assert exit.value.code == 2
    assert "-n must be at least 1, got 0" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [[], ["nothing"]])
def test_no_command_or_an_unknown_one_is_a_usage_error(argv, capsys):
    with pytest.raises(SystemExit) as exit:
        main(argv)
    assert exit.value.code == 2
    assert "usage: python -m synk" in capsys.readouterr().err


def test_a_command_gets_its_arguments_untouched_and_sets_the_exit_status(monkeypatch):
    got = []
    bench = types.ModuleType("synk.commands.bench")
    bench.main = lambda argv: got.append(argv) or 3
    monkeypatch.setitem(sys.modules, "synk.commands.bench", bench)
    assert main(["bench", "--quick", "2", "--help"]) == 3
    assert got == [["--quick", "2", "--help"]]
