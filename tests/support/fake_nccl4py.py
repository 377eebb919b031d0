"""Stand-ins for nccl4py and cuda.core, with the calls of nccl4py 0.6.0 that synk makes.

Its communicators move arrays of the CPU between ranks, at once, but say that they are
still at it for some time, as non-blocking ones do.
"""

import sys
import types
from importlib.machinery import ModuleSpec

import fake_nccl
import numpy as np
import stand_ins
from packaging.version import Version

from synk.ranks.session import SESSION

IN_PROGRESS, REMOTE_ERROR = 7, 6
log: list = []  # what this rank has done, in order


class State:
    """What tests set, before the ranks are forked or on one of them."""

    library = "2.32.3"  # or None
    looks = 3  # at what is in progress, until it is done
    error = 0  # what the next look at a communicator gives


class NCCLConfig:
    def __init__(self, *, blocking=None):
        self.blocking = blocking


class UniqueId:
    def __init__(self, data=b"u" * 128):
        self._data = data

    def __bytes__(self):
        return self._data

    @staticmethod
    def from_bytes(data):
        assert len(data) == 128
        return UniqueId(data)


class Communicator(fake_nccl.Exchange):
    """Reads and writes arrays by address, as NCCL does."""

    @classmethod
    def init(cls, nranks, rank, unique_id, config=None):
        assert config is not None
        assert config.blocking is False
        assert bytes(unique_id) == b"u" * 128
        assert (nranks, rank) == (SESSION.size, SESSION.rank)
        return cls()

    def __init__(self):
        self._comm = SESSION.context.comm
        self._left = State.looks
        log.append("init")

    def get_async_error(self):
        if State.error:
            return State.error
        self._left -= 1
        return IN_PROGRESS if self._left > 0 else 0

    def abort(self):
        log.append("abort")

    def allreduce(self, sendbuf, recvbuf, op, *, stream=None, config=None):
        self.reduce(sendbuf, recvbuf, op, None, stream=stream)

    def reduce(self, sendbuf, recvbuf, op, root=None, *, stream=None, config=None):
        given, room = self._begin("reduce", stream, sendbuf, recvbuf)
        total = self._reduced(given, op)
        if root in (None, self._comm.rank):
            room[...] = total

    def broadcast(self, sendbuf, recvbuf, root, *, stream=None, config=None):
        given, room = self._begin("broadcast", stream, sendbuf, recvbuf)
        room[...] = self._given(given)[root]

    def allgather(self, sendbuf, recvbuf, *, stream=None, config=None):
        given, room = self._begin("allgather", stream, sendbuf, recvbuf)
        room[...] = np.concatenate(self._given(given))

    def _begin(self, name, stream, *buffers):
        assert self._left <= 0, "called while something is in progress"
        assert isinstance(stream, Stream)
        log.append(name)
        self._left = State.looks
        return [memory_of(buffer) for buffer in buffers]


def memory_of(buffer):
    """Return an array of numpy's that can be written to, in the memory of a buffer."""
    seen = np.from_dlpack(buffer)
    where = {**seen.__array_interface__, "data": (seen.ctypes.data, False)}
    return np.asarray(types.SimpleNamespace(__array_interface__=where))


class Event:
    is_done = True


class Stream:
    """Does all at once."""

    handle = 1234

    def sync(self):
        log.append("sync")

    def record(self):
        log.append("record")
        return Event()


class Device:
    def __init__(self, number):
        assert number == 0

    def set_current(self):
        log.append("set_current")

    def create_stream(self):
        return Stream()


def get_version():
    library = State.library
    found = library and types.SimpleNamespace(version=Version(library))
    return types.SimpleNamespace(libnccl=found)


def install(monkeypatch) -> None:
    """Put the stand-ins in place of nccl4py and cuda.core."""
    nccl = module(
        "nccl.core",
        **{op.upper(): op for op in fake_nccl.UFUNCS},
        Communicator=Communicator,
        NCCLConfig=NCCLConfig,
        UniqueId=UniqueId,
        get_unique_id=UniqueId,
        get_version=get_version,
        get_error_string=lambda state: f"error {state}",
    )
    core = module("cuda.core", Device=Device, Stream=Stream)
    for one in nccl, core, module("nccl", core=nccl), module("cuda", core=core):
        monkeypatch.setitem(sys.modules, one.__name__, one)

    def open_array(self, array, stream):  # JAX on the CPU knows no streams
        assert isinstance(stream, Stream)
        log.append("open")
        self._device = array.__dlpack_device__()
        self._capsule = array.__dlpack__()

    stand_ins.arrays_of_streams(monkeypatch, open_array)
    log.clear()


def module(name, **attributes):
    made = types.ModuleType(name)
    made.__dict__.update(attributes)
    made.__spec__ = ModuleSpec(name, None)
    return made
