"""The device of each rank; with a stand-in for NVML, as most machines have no GPU."""

import os
import subprocess
import sys

import fake_nvml
import pytensor
import pytest
import stand_ins

import synk
from synk.commands import info
from synk.ranks.session import SESSION
from synk.workers import devices as machine
from synk.workers.devices import GPU, Device, Environment, cores_by_rank, plan

CORES = list(range(8))


def gpu(index, cores=()):
    return GPU(index, f"GPU-{index}", "a GPU", 1 << 30, tuple(cores))


def test_without_gpus_ranks_run_on_cores(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    assert plan("auto", None, CORES) == [Device()] * 8
    assert plan("auto", 3, CORES) == [Device()] * 3
    for request in ("cuda", [0]):
        with pytest.raises(synk.StateError, match="no NVIDIA GPU was found"):
            plan(request, None, CORES)
    fake_nvml.install(monkeypatch, [None], works=False)  # without a driver
    assert machine.find_gpus() == []
    assert machine.driver() is None
    assert plan("auto", 2, CORES) == [Device()] * 2
    fake_nvml.install(monkeypatch, [None])
    stand_ins.obstacle_to_jax(monkeypatch, "JAX is not installed")
    assert plan("auto", None, CORES) == [Device()] * 8
    for request in ("cuda", [0]):  # it was asked for
        with pytest.raises(synk.StateError, match="JAX is not installed"):
            plan(request, None, CORES)


@pytest.mark.parametrize(
    ("request_", "n", "expected"),
    [
        ("auto", None, [0, 1, 2]),
        ("cuda", None, [0, 1, 2]),
        ("auto", 2, [0, 1]),
        ("cpu", None, [None] * 8),
        ("cpu", 2, [None] * 2),
        ([2, 0], None, [2, 0]),
        ([0, 0], 2, [0, 0]),
        ((1,), None, [1]),
    ],
)
def test_every_rank_has_a_gpu_of_its_own_unless_told_otherwise(
    monkeypatch, request_, n, expected
):
    fake = fake_nvml.install(monkeypatch, [None] * 3)
    devices = plan(request_, n, CORES)
    found = [None if device.gpu is None else device.gpu.number for device in devices]
    assert found == expected
    assert [device.sharers for device in devices if device.is_gpu] == [
        expected.count(number) for number in expected if number is not None
    ]
    assert fake.users == 0


@pytest.mark.parametrize(
    ("request_", "n", "error", "message"),
    [
        ("auto", 4, ValueError, r"4 ranks, but 3 GPUs.*devices=\[0, 1, 2, 0\]"),
        ("cuda", 4, ValueError, "4 ranks, but 3 GPUs"),
        ([0, 3], None, ValueError, "no GPU 3: 3 were found"),
        ([-1], None, ValueError, "no GPU -1"),
        ([0, 1], 3, ValueError, "n=3, but devices names 2"),
        ([], None, ValueError, "names no GPU"),
        ("gpu", None, ValueError, "got 'gpu'"),
        (["a"], None, TypeError, "list of GPUs' numbers"),
        (1, None, TypeError, "list of GPUs' numbers"),
    ],
)
def test_impossible_requests_are_refused(monkeypatch, request_, n, error, message):
    fake_nvml.install(monkeypatch, [None] * 3)
    with pytest.raises(error, match=message):
        plan(request_, n, CORES)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2,0", [2, 0]),
        ("1, 7, 0", [1]),  # what follows a wrong entry is not visible
        ("0,0", [0]),
        ("GPU-0001-aaaa,GPU-0000", [1, 0]),
        ("GPU-", []),  # not one GPU
        ("MIG-1", []),
    ],
)
def test_visible_gpus_are_cudas(monkeypatch, visible, expected):
    fake_nvml.install(monkeypatch, [None] * 3)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = machine.find_gpus()
    assert [gpu.uuid for gpu in found] == [f"GPU-{i:04d}-aaaa" for i in expected]
    assert [gpu.number for gpu in found] == list(range(len(expected)))


def test_a_rank_has_cores_near_to_its_gpu(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 130)
    fake_nvml.install(monkeypatch, [range(4), range(4, 8), {7, 129}])
    found = machine.find_gpus()
    assert [gpu.cores for gpu in found] == [(0, 1, 2, 3), (4, 5, 6, 7), (7, 129)]


@pytest.mark.parametrize(
    ("near", "expected"),
    [
        ([(0, 1, 2, 3), (4, 5, 6, 7)], [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ([(4, 5, 6, 7), (0, 1, 2, 3)], [[4, 5, 6, 7], [0, 1, 2, 3]]),
        ([(0, 1, 2, 3)] * 2, [[0, 1], [2, 3]]),
        ([(), ()], [[0, 1, 2, 3], [4, 5, 6, 7]]),  # not known
        ([(90, 91), ()], [[0, 1, 2, 3], [4, 5, 6, 7]]),  # not ours to use
        ([None, None], [[0, 1, 2, 3], [4, 5, 6, 7]]),  # the CPU
    ],
)
def test_ranks_near_to_the_same_cores_divide_them(near, expected):
    devices = [
        Device(None if cores is None else gpu(i, cores)) for i, cores in enumerate(near)
    ]
    assert cores_by_rank(devices, CORES) == expected


MEMORY, PRECISION = "XLA_PYTHON_CLIENT_MEM_FRACTION", "JAX_DEFAULT_MATMUL_PRECISION"


@pytest.mark.parametrize(
    ("name", "sharers", "before", "expected"),
    [
        ("CUDA_VISIBLE_DEVICES", 1, None, "GPU-3"),
        (MEMORY, 1, None, None),
        (MEMORY, 3, None, "0.250"),
        (MEMORY, 3, "0.1", "0.1"),
        (PRECISION, 1, None, "highest"),
        (PRECISION, 1, "tensorfloat32", "tensorfloat32"),
    ],
)
def test_a_rank_sees_its_own_gpu_and_its_part_of_the_memory(
    monkeypatch, name, sharers, before, expected
):
    """Products are of float32 there, unless the user has chosen."""
    monkeypatch.delenv(name, raising=False)
    if before is not None:
        monkeypatch.setenv(name, before)
    environment = Environment(Device(gpu(3), sharers))
    found = os.environ.get(name)
    environment.release()
    assert (found, os.environ.get(name)) == (expected, before)


def test_on_the_cpu_jax_is_kept_from_gpus_unless_the_user_has_chosen(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    with synk.session(1, devices="cpu"):
        assert os.environ["JAX_PLATFORMS"] == "cpu"
    assert "JAX_PLATFORMS" not in os.environ
    monkeypatch.setenv("JAX_PLATFORMS", "cuda,cpu")
    with synk.session(1, devices="cpu"):
        assert os.environ["JAX_PLATFORMS"] == "cuda,cpu"


def test_on_a_gpu_the_default_mode_is_jaxs_until_the_end_or_the_scripts_word():
    config = pytensor.config
    with config.change_flags(mode="Mode"):
        for word, after in ("JAX", "Mode"), ("FAST_COMPILE", "FAST_COMPILE"):
            config.mode = "Mode"
            environment = Environment(Device(gpu(0)))
            assert config.mode == "JAX"
            config.mode = word
            environment.release()
            assert config.mode == after


def test_jax_that_is_imported_already_is_told():
    pytest.importorskip("jax", reason="JAX, of the extra synk[jax], is missing")
    script = """
import jax, synk
from synk.workers.devices import GPU, Device, Environment
on_gpu = Environment(Device(GPU(0, "GPU-0", "a GPU", 1, ())))
assert jax.config.jax_default_matmul_precision == "highest"
on_gpu.release()
assert jax.config.jax_default_matmul_precision is None
with synk.session(1, devices="cpu"):
    assert jax.config.jax_platforms == "cpu"
assert not jax.config.jax_platforms
jax.config.update("jax_platforms", "cuda,cpu")
with synk.session(1, devices="cpu"):
    assert jax.config.jax_platforms == "cuda,cpu"
assert jax.config.jax_platforms == "cuda,cpu"
"""
    env = {k: v for k, v in os.environ.items() if k != "JAX_PLATFORMS"}
    subprocess.run([sys.executable, "-c", script], check=True, timeout=100, env=env)


def worker_device(context):
    """Return what a rank says of itself."""
    return os.environ["CUDA_VISIBLE_DEVICES"], context.where(worker_device)


def test_forked_ranks_are_told_of_their_gpus(monkeypatch):
    fake_nvml.install(monkeypatch, [None] * 2)
    with synk.session(devices=[1, 0, 1]) as n:
        assert n == 3
        told = SESSION.run(worker_device)
    assert [uuid for uuid, _ in told] == [f"GPU-{i:04d}-aaaa" for i in (1, 0, 1)]
    assert "on rank 1 of 3 (GPU 0, cpu" in told[1][1]


def test_info_tells_of_nccl_without_loading_it(monkeypatch):
    fake_nvml.install(monkeypatch, [None])
    ours = {"nccl4py": "0.6.0"}
    for installed, expected in (
        ({}, "no nccl4py, so values pass through the host: pip install"),
        (ours, "of no Python package, by nccl4py 0.6.0"),
        (ours | {"nvidia-nccl-cu13": "2.32.3"}, "2.32.3, by nccl4py 0.6.0"),
    ):
        stand_ins.installed(monkeypatch, installed)
        assert f"  NCCL          {expected}" in info.report()
        assert "nccl" not in sys.modules


def test_info_tells_of_gpus(monkeypatch):
    fake_nvml.install(monkeypatch, [range(2), range(2), None])
    report = info.report()
    assert "GPU 1         NVIDIA H200, 139.0 GiB, near cores 0-1" in report
    assert "driver        580.159.04, for CUDA 13.1 and older" in report
    assert "peer access   between 0-1; between 2" in report
    assert "rank 2        GPU 2, core" in report
    assert "4 ranks, but 3 GPUs" in info.report(4)
