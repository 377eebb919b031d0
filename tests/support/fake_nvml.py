"""A stand-in for NVML's bindings: machines with GPUs, where there are none."""

import sys
import types
from importlib.machinery import ModuleSpec

import stand_ins


class NVMLError(Exception):
    """What every function of NVML raises."""


class FakeNVML(types.ModuleType):
    """What synk calls of ``pynvml``, for GPUs near to some cores; None is unknown."""

    NVMLError = NVMLError
    NVML_P2P_STATUS_OK = 0

    def __init__(self, cores, works=True):
        super().__init__("pynvml")
        self.__spec__ = ModuleSpec("pynvml", None)
        self._cores, self._works = list(cores), works
        self.users = 0

    def nvmlInit(self):
        if not self._works:
            raise NVMLError("driver not loaded")
        self.users += 1

    def nvmlShutdown(self):
        self.users -= 1

    def nvmlSystemGetDriverVersion(self):
        return "580.159.04"

    def nvmlSystemGetCudaDriverVersion(self):
        return 13010

    def nvmlDeviceGetCount(self):
        assert self.users, "NVML is not initialised"
        return len(self._cores)

    def nvmlDeviceGetHandleByIndex(self, index):
        return [index]  # as NVML's: two handles of one GPU are not equal objects

    def nvmlDeviceGetHandleByUUID(self, uuid):
        for i in range(len(self._cores)):
            if self.nvmlDeviceGetUUID([i]) == uuid:
                return [i]
        raise NVMLError("not found")

    def nvmlDeviceGetUUID(self, handle):
        return f"GPU-{handle[0]:04d}-aaaa"

    def nvmlDeviceGetName(self, handle):
        return "NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, handle):
        return types.SimpleNamespace(total=139 << 30)

    def nvmlDeviceGetCpuAffinity(self, handle, words):
        near = self._cores[handle[0]]
        if near is None:
            raise NVMLError("not supported")
        mask = [0] * words
        for core in near:
            mask[core // 64] |= 1 << core % 64
        return mask

    def nvmlDeviceGetP2PStatus(self, mine, other, capability):
        assert isinstance(capability, int)
        return 0 if mine[0] // 2 == other[0] // 2 else 1


def install(monkeypatch, cores, works=True) -> FakeNVML:
    """Put a machine with such GPUs, and JAX for them, in place of this one."""
    fake = FakeNVML(cores, works)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    stand_ins.obstacle_to_jax(monkeypatch, None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake
