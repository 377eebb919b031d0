"""What a machine gives: huge pages, memory, cores; and with which privileges."""

import itertools
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from synk.memory import limits, mapping, proc
from synk.memory.limits import MemoryLimit, cpu_quota, memory_limits, tightest
from synk.memory.mapping import address
from synk.memory.segment import Attachments, Segment
from synk.workers import affinity, zygote_source
from synk.workers.zygote_source import ZygoteSource

# -- memory


MEMINFO = """MemTotal:       16000 kB
MemFree:         1000 kB
MemAvailable:   12000 kB
HugePages_Total:    0
"""


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Make a system of few files; returns what writes one."""
    monkeypatch.setattr(limits, "PROC", tmp_path / "proc")
    monkeypatch.setattr(limits, "CGROUPS", tmp_path / "cgroup")

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


MACHINE = MemoryLimit(None, 16000 * 1024, 12000 * 1024)


def test_without_cgroups_the_machine_is_the_limit_and_this_one_has_some_free(
    system, tmp_path, monkeypatch
):
    assert memory_limits() == [MACHINE]
    assert tightest() == MACHINE
    assert str(MACHINE) == "the machine's 16,384,000"
    (tmp_path / "proc/meminfo").unlink()  # what cannot be read is no limit
    assert tightest() is None
    monkeypatch.undo()
    limit = tightest()
    assert limit is not None
    assert 0 < limit.free <= limit.total


def test_cgroups_of_version_2_and_those_around_them_count(system, tmp_path):
    system("proc/self/cgroup", "0::/job/step\n")
    cgroup2(system, "/job/step", "max", 400)
    stat = "anon 500\nfile 300\ninactive_file 100\nactive_file 50\nslab_reclaimable 7\n"
    cgroup2(system, "/job", 1000, 900, stat)
    job = MemoryLimit(tmp_path / "cgroup/job", 1000, 257)
    assert memory_limits() == [MACHINE, job]
    assert tightest() == job
    assert str(job) == f"cgroup {tmp_path}/cgroup/job's 1,000"
    cgroup2(system, "/job/step", 500, 600)  # more than it may have: nothing is left
    assert tightest() == MemoryLimit(tmp_path / "cgroup/job/step", 500, 0)


@pytest.mark.parametrize("path", ["/", "/docker/0123", "/../elsewhere"])
def test_a_containers_limit_is_found_at_the_root(system, tmp_path, path):
    """The path may be one of the host, of which the container sees nothing."""
    system("proc/self/cgroup", f"0::{path}\n")
    cgroup2(system, "", 1000, 400)
    assert tightest() == MemoryLimit(tmp_path / "cgroup", 1000, 600)


def test_cgroups_of_version_1_count(system, tmp_path):
    system("proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/docker/0123\n0::/\n")
    folder = "cgroup/memory/docker/0123"
    system("cgroup/memory/memory.limit_in_bytes", 9223372036854771712)
    system(f"{folder}/memory.limit_in_bytes", 1000)
    system(f"{folder}/memory.usage_in_bytes", 900)
    stat = "cache 400\ninactive_file 1\ntotal_inactive_file 100\ntotal_active_file 20\n"
    system(f"{folder}/memory.stat", stat)
    assert memory_limits() == [MACHINE, MemoryLimit(tmp_path / folder, 1000, 220)]


# -- cores


def test_the_ranks_share_all_cores_without_overlap_if_there_are_enough():
    for cores, n in (([0, 1, 2, 3, 4], 2), ([3, 5, 7], 3), (list(range(64)), 7)):
        shares = [affinity.share(cores, rank, n) for rank in range(n)]
        assert list(itertools.chain(*shares)) == cores
        sizes = {len(share) for share in shares}
        assert max(sizes) - min(sizes) <= 1
    assert {tuple(affinity.share([4, 6], rank, 5)) for rank in range(5)} == {(4,), (6,)}


def test_the_quota_of_a_control_group_limits_the_cores(monkeypatch):
    quotas = iter([1.5, 0.2, None, 64.0])
    monkeypatch.setattr(limits, "cpu_quota", lambda: next(quotas))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {4, 2, 9, 7})
    assert affinity.usable_cores() == [2, 4]
    assert affinity.usable_cores() == [2]
    assert affinity.usable_cores() == [2, 4, 7, 9]
    assert affinity.usable_cores() == [2, 4, 7, 9]


QUOTA, PERIOD = "cpu.cfs_quota_us", "cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        ("0::/", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/", {"cpu.max": "max 100000\n"}, None),
        ("0::/", {"cpu.max": "\n"}, None),
        ("0::/a/b", {"a/cpu.max": "50000 100000", "a/b/cpu.max": "max 100000"}, 0.5),
        ("0::/a/b", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "200000 100000"}, 2),
        ("0::/docker/1/b", {"cpu.max": "50000 100000"}, 0.5),
        ("0::/../b", {"cpu.max": "50000 100000"}, 0.5),
        ("0::/a", {"unified/a/cpu.max": "50000 100000"}, 0.5),
        ("4:cpu:/", {f"cpu/{QUOTA}": "50000\n", f"cpu/{PERIOD}": "100000\n"}, 0.5),
        ("4:cpu:/", {f"cpu/{QUOTA}": "-1\n", f"cpu/{PERIOD}": "100000\n"}, None),
        ("4:cpu:/", {f"cpu/{QUOTA}": "50000", f"cpu/{PERIOD}": ""}, None),
        ("4:cpu:/", {f"cpu/{QUOTA}": "50000"}, None),
        (
            "4:cpu,cpuacct:/a/b\n0::/",
            {
                f"cpu,cpuacct/a/{QUOTA}": "250000",
                f"cpu,cpuacct/a/{PERIOD}": "100000",
                f"cpu/a/b/{QUOTA}": "-1",
                f"cpu/a/b/{PERIOD}": "100000",
            },
            2.5,
        ),
        ("", {}, None),
    ],
)
def test_quotas_are_read_from_control_groups_of_both_versions(
    groups, files, quota, system
):
    files = {f"cgroup/{name}": text for name, text in files.items()}
    for name, text in {**files, "proc/self/cgroup": groups}.items():
        system(name, text)
    assert cpu_quota() == quota


# -- privileges


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
    source._kept, source._user = kept, proc.user()
    monkeypatch.setattr(zygote_source, "why_no_fork", lambda: "pretended")
    monkeypatch.setattr(source, "_start", lambda zygote, *_: started.append(zygote))
    if has_dropped:
        monkeypatch.setattr(proc, "user", lambda: ((1, 1, 1), (1, 1, 1), []))
    zygote = source.take(1, lambda is_forked: None)
    assert (zygote is kept) == (not has_dropped)
    assert started == ([zygote] if has_dropped else [])
    assert kept.closed == has_dropped


# -- huge pages: segments have them where the kernel gives any, and else do without

MANY = (4 << 20) + 20_000
"""Bytes of two huge pages and some small ones."""


def pages_of(segment: Segment, name: str = "ShmemPmdMapped") -> int:
    """Return how many kilobytes of a segment are mapped in huge pages, say."""
    start = address(segment.array(np.uint8, (1,)))
    _, found, after = Path("/proc/self/smaps").read_text().partition(f"{start:x}-")
    assert found
    return int(after.partition(f"{name}:")[2].split()[0])


@pytest.fixture(params=["as the kernel has it", "refused", "slow", "none"])
def kernel(request, monkeypatch):
    if request.param == "refused":
        monkeypatch.setattr(mapping, "_COLLAPSE", 9999)
    elif request.param == "slow":
        monkeypatch.setattr(mapping, "SLOW", 0.0)
    elif request.param == "none":
        monkeypatch.setattr(mapping, "HUGE", 0)
    return request.param


def test_segments_have_huge_pages_where_the_kernel_gives_them(kernel, monkeypatch):
    assert mapping.are_huge_given() <= (kernel == "as the kernel has it")
    fill, filled = mapping.fill, []
    monkeypatch.setattr(mapping, "fill", lambda *asked: filled.append(fill(*asked)))
    segment = Segment(MANY)
    array = segment.array(np.uint8, (MANY,))
    array[:] = 1
    if filled == [True]:
        assert pages_of(segment) == 4096
    if kernel in ("refused", "none"):
        assert pages_of(segment) == 0


def test_others_map_them_as_such_whatever_lies_between():
    page, fits = mmap.PAGESIZE, mapping.HUGE or 1
    between = [mmap.mmap(-1, MANY + n * 8 * page) for n in range(20)]
    for each in between[::2]:
        each.close()
    segments, others = [Segment(MANY) for _ in range(10)], Attachments()
    for segment in segments:
        mine = segment.array(np.uint8, (MANY,))
        mine[:] = np.arange(MANY) % 251
        theirs = others.array(segment.window(mine))
        np.testing.assert_array_equal(theirs, mine)
        assert address(mine) % fits == address(theirs) % fits == 0
    # (An attempt of the kernel's may fail, and the next succeed.)
    assert pages_of(others.segment(*segment.place)) == pages_of(segment)


def test_all_is_reserved_and_growing_keeps_bytes_and_views(kernel):
    segment = Segment(3 << 20)
    used = os.fstat(segment.place[1]).st_blocks * 512
    assert segment.nbytes <= used <= segment.nbytes + 4096
    assert len(segment.memory()) == segment.nbytes
    view = segment.array(np.uint8, (3 << 20,))
    view[:] = np.arange(3 << 20) % 251
    segment.grow(9 << 20)
    whole = segment.array(np.uint8, (9 << 20,))
    np.testing.assert_array_equal(whole[: 3 << 20], view)
    assert not whole[3 << 20 :].any()
    segment.give_back(1 << 20)
    assert os.fstat(segment.place[1]).st_blocks * 512 <= (1 << 20) + 4096
    segment.grow(9 << 20)
    np.testing.assert_array_equal(whole[: 1 << 20], np.arange(1 << 20) % 251)
    assert not whole[1 << 20 :].any()
    whole[5] = 9
    assert view[5] == 9
