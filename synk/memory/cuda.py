"""Copies from pinned memory to a GPU's, on a stream beside those of JAX.

Arrays go between that stream and JAX's without the host, by DLPack's protocol. Who
takes an array by it says on which stream of his it will be used. JAX has that stream
wait for what it computes; here, JAX's stream is made to wait for one of ours.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple


def after_xla(module: str) -> Any:
    """Import a module of CUDA's Python bindings, and have XLA take the GPU before."""
    # Bindings newer than the driver ask it for calls that it does not have, and it
    # keeps its answers in a log. One begun before CUDA is initialised is lost then, and
    # what the driver notes next crashes the process: NCCL, when it connects the ranks,
    # has it note something. (Seen with driver 580.159 and cuda-bindings 13.5.)
    import_module("jax").devices()
    return import_module(module)


class Piece(NamedTuple):
    """Bytes that are copied to an array: to which, from what address, how many."""

    at: int
    source: int
    nbytes: int


class CudaCopier:
    """Copies by the CUDA driver, to the one GPU that this process sees.

    Raises ImportError without its bindings, and RuntimeError if it refuses.
    """

    def __init__(self) -> None:
        self._driver: Any = after_xla("cuda.bindings.driver")
        core = after_xla("cuda.core")
        self._threads = threading.local()
        try:
            self._device: Any = core.Device(0)
            self._enter()
            self._stream: Any = self._device.create_stream()
            # What is waited for must not be behind the rows of the next call.
            self._awaited: Any = self._device.create_stream()
        except Exception as error:  # cuda.core's own, which it does not export
            raise RuntimeError(str(error)) from error

    def _enter(self) -> None:
        """Have this thread use the GPU's primary context, which is XLA's too."""
        if not getattr(self._threads, "have_entered", False):
            self._device.set_current()
            self._threads.have_entered = True

    def register(self, start: int, nbytes: int) -> None:
        """Pin memory of the host, from the start of a page on; raise OSError if not."""
        self._enter()
        (status,) = self._driver.cuMemHostRegister(start, nbytes, 0)
        if status != self._driver.CUresult.CUDA_SUCCESS:
            raise OSError(f"cuMemHostRegister: {status.name}")

    def unregister(self, start: int) -> None:
        """Undo that, after all copies that were started; raises nothing."""
        with contextlib.suppress(Exception):  # CUDA may have ended, or failed before
            self._enter()
            self._stream.sync()
            self._driver.cuMemHostUnregister(start)

    def write(self, array: Any, source: int, nbytes: int) -> None:
        """Copy to an array that nobody uses, and wait for it."""
        at = array.unsafe_buffer_pointer()
        self._copy_now(self._driver.cuMemcpyHtoDAsync, at, source, nbytes)

    def read(self, array: Any, target: int, nbytes: int) -> None:
        """Copy an array that is there to the host, and wait for it."""
        at = array.unsafe_buffer_pointer()
        self._copy_now(self._driver.cuMemcpyDtoHAsync, target, at, nbytes)

    def _copy_now(self, copy: Callable, to: int, of: int, nbytes: int) -> None:
        self._enter()
        _call(copy, to, of, nbytes, self._awaited.handle)
        self._awaited.sync()

    def writing(self, array: Any) -> CudaWriting:
        """Begin to write to an array, after what JAX has done to its memory."""
        self._enter()
        return CudaWriting(self._driver, self._stream, array)


class CudaWriting:
    """Copies into one array of JAX's."""

    def __init__(self, driver: Any, stream: Any, array: Any) -> None:
        self._driver, self._stream, self._handle = driver, stream, stream.handle
        self._after = After(array, stream)
        self._start = array.unsafe_buffer_pointer()
        self._ended: Any = None

    def copy(self, pieces: Sequence[Piece]) -> None:
        """Start to copy from the host's memory to the array."""
        # Many copies are one call of the driver: of 64 images, each by itself, the GPU
        # took 1.1 times as long.
        driver, start = self._driver, self._start
        if len(pieces) == 1:
            ((at, source, nbytes),) = pieces
            _call(driver.cuMemcpyHtoDAsync, start + at, source, nbytes, self._handle)
            return
        # In the order of the stream, as single copies are.
        how = driver.CUmemcpyAttributes()
        order = driver.CUmemcpySrcAccessOrder
        how.srcAccessOrder = order.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
        to = [driver.CUdeviceptr(start + piece.at) for piece in pieces]
        of = [driver.CUdeviceptr(piece.source) for piece in pieces]
        sizes = [piece.nbytes for piece in pieces]
        how_many = len(pieces), [how], [0], 1
        _call(driver.cuMemcpyBatchAsync, to, of, sizes, *how_many, self._handle)

    def end(self) -> None:
        """Say that all copies have been started."""
        self._ended = self._after.mark()

    def array(self) -> Any:
        """Return the array. JAX reads it after the copies; the host need not wait."""
        import jax

        return jax.dlpack.from_dlpack(self._after)

    def wait(self) -> None:
        """Wait until the copies that were started have been made."""
        (self._stream if self._ended is None else self._ended).sync()


def _call(function: Callable, *args: Any) -> None:
    """Call a function of the driver; raise if it fails."""
    (status,) = function(*args)
    if status:
        raise RuntimeError(f"{function.__name__}: {status.name}")


# -- arrays between streams


class Capsule:
    """An array of JAX's, for who does not ask to wait for anything.

    A stream of `cuda.core` waits for it, and so for all that JAX computed before it.
    """

    def __init__(self, array: Any, stream: Any) -> None:
        self._device = array.__dlpack_device__()
        self._capsule = array.__dlpack__(stream=int(stream.handle))

    def __dlpack__(self, **options: Any) -> Any:
        """Return the capsule; it can be used once."""
        return self._capsule

    def __dlpack_device__(self) -> Any:
        """Return what DLPack calls the array's device."""
        return self._device


class After(Capsule):
    """An array that a stream writes to, for JAX: whoever reads it waits for that."""

    def __init__(self, array: Any, stream: Any) -> None:
        super().__init__(array, stream)
        self._stream = self._awaited = stream

    def mark(self) -> Any:
        """Return an event; what the stream does after it is not waited for."""
        self._awaited = self._stream.record()
        return self._awaited

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        """Return the capsule; the stream named, or else the host, waits for ours."""
        if stream is None:
            self._awaited.sync()
        elif stream != -1:
            import_module("cuda.core").Stream.from_handle(stream).wait(self._awaited)
        return self._capsule
