"""How much memory is free, by the files of the kernel, and of both kinds of cgroups."""

from __future__ import annotations

import pytest

from synk.memory import cgroups
from synk.memory.limits import Limit, memory_limits, tightest

MEMINFO = """MemTotal:       16000 kB
MemFree:         1000 kB
MemAvailable:   12000 kB
HugePages_Total:    0
"""


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Make a system of few files; returns what writes one."""
    monkeypatch.setattr(cgroups, "PROC", tmp_path / "proc")
    monkeypatch.setattr(cgroups, "CGROUPS", tmp_path / "cgroup")

    def write(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(text))

    write("proc/meminfo", MEMINFO)
    return write


def cgroup2(write, folder, most, current, stat=""):
    write(f"cgroup{folder}/memory.max", f"{most}\n")
    write(f"cgroup{folder}/memory.current", f"{current}\n")
    write(f"cgroup{folder}/memory.stat", stat)


MACHINE = Limit(None, 16000 * 1024, 12000 * 1024)


def test_without_cgroups_the_machine_is_the_limit(system):
    assert memory_limits() == [MACHINE]
    assert tightest() == MACHINE
    assert str(MACHINE) == "the machine's 16,384,000"


def test_cgroups_of_version_2_and_those_around_them_count(system, tmp_path):
    system("proc/self/cgroup", "0::/job/step\n")
    cgroup2(system, "/job/step", "max", 400)
    stat = "anon 500\nfile 300\ninactive_file 100\nactive_file 50\nslab_reclaimable 7\n"
    cgroup2(system, "/job", 1000, 900, stat)
    job = Limit(tmp_path / "cgroup/job", 1000, 257)
    assert memory_limits() == [MACHINE, job]
    assert tightest() == job
    assert str(job) == f"cgroup {tmp_path}/cgroup/job's 1,000"
    cgroup2(system, "/job/step", 500, 600)  # more than it may have: nothing is left
    assert tightest() == Limit(tmp_path / "cgroup/job/step", 500, 0)


@pytest.mark.parametrize("path", ["/", "/docker/0123", "/../elsewhere"])
def test_a_containers_limit_is_found_at_the_root(system, tmp_path, path):
    """The path may be one of the host, of which the container sees nothing."""
    system("proc/self/cgroup", f"0::{path}\n")
    cgroup2(system, "", 1000, 400)
    assert tightest() == Limit(tmp_path / "cgroup", 1000, 600)


def test_cgroups_of_version_1_count(system, tmp_path):
    system("proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/docker/0123\n0::/\n")
    folder = "cgroup/memory/docker/0123"
    system("cgroup/memory/memory.limit_in_bytes", 9223372036854771712)
    system(f"{folder}/memory.limit_in_bytes", 1000)
    system(f"{folder}/memory.usage_in_bytes", 900)
    stat = "cache 400\ninactive_file 1\ntotal_inactive_file 100\ntotal_active_file 20\n"
    system(f"{folder}/memory.stat", stat)
    assert memory_limits() == [MACHINE, Limit(tmp_path / folder, 1000, 220)]


def test_what_cannot_be_read_is_no_limit(system, tmp_path):
    (tmp_path / "proc/meminfo").unlink()
    assert memory_limits() == []
    assert tightest() is None


def test_this_machine_has_a_limit_and_some_of_it_is_free():
    limit = tightest()
    assert limit is not None
    assert 0 < limit.free <= limit.total
