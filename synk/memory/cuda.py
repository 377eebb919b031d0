"""Copies from the host's pinned memory to a GPU, on a CUDA stream beside JAX's.

Arrays are passed between that stream and JAX's by DLPack's protocol, without a wait of
the host. The consumer of an array names the stream on which it will use the array. JAX
has our stream wait for its computations; here JAX's stream is made to wait for ours.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple


def import_after_xla(module: str) -> Any:
    """Import a module of CUDA's Python bindings, after XLA has initialised the GPU."""
    # Bindings newer than the driver ask it for functions that it does not have, which
    # the driver notes in a log. A log begun before CUDA is initialised is lost then,
    # and the next entry crashes the process, such as when NCCL connects the ranks.
    # (Seen with driver 580.159 and cuda-bindings 13.5.)
    import_module("jax").devices()
    return import_module(module)


class Piece(NamedTuple):
    """A copy of bytes from the host to an array on the GPU."""

    at: int  # the first byte in the array
    source: int  # the host's address
    nbytes: int


class CudaCopier:
    """Copies by the CUDA driver, to and from the one GPU that this process sees.

    Raises ImportError without CUDA's bindings, and RuntimeError if CUDA fails.
    """

    def __init__(self) -> None:
        self._driver: Any = import_after_xla("cuda.bindings.driver")
        core = import_after_xla("cuda.core")
        self._threads = threading.local()
        try:
            self._device: Any = core.Device(0)
            self._enter()
            self._stream: Any = self._device.create_stream()
            # For copies that the host waits for: they must not queue behind the rows of
            # the next call.
            self._awaited: Any = self._device.create_stream()
        except Exception as error:  # cuda.core's own, which it does not export
            raise RuntimeError(str(error)) from error

    def _enter(self) -> None:
        """Set the GPU's primary context, which XLA uses, too, in this thread."""
        if not getattr(self._threads, "have_entered", False):
            self._device.set_current()
            self._threads.have_entered = True

    def register(self, start: int, nbytes: int) -> None:
        """Pin memory of the host, from a page's start on; raise OSError if refused."""
        self._enter()
        (status,) = self._driver.cuMemHostRegister(start, nbytes, 0)
        if status != self._driver.CUresult.CUDA_SUCCESS:
            raise OSError(f"cuMemHostRegister: {status.name}")

    def unregister(self, start: int) -> None:
        """Unpin memory, after all copies that were started; raises nothing."""
        with contextlib.suppress(Exception):  # CUDA may have shut down, or failed
            self._enter()
            self._stream.sync()
            self._driver.cuMemHostUnregister(start)

    def write(self, array: Any, source: int, nbytes: int) -> None:
        """Copy from the host to an array that nobody uses, and wait for the copy."""
        at = array.unsafe_buffer_pointer()
        self._copy_now(self._driver.cuMemcpyHtoDAsync, at, source, nbytes)

    def read(self, array: Any, target: int, nbytes: int) -> None:
        """Copy an array that is computed to the host, and wait for the copy."""
        at = array.unsafe_buffer_pointer()
        self._copy_now(self._driver.cuMemcpyDtoHAsync, target, at, nbytes)

    def _copy_now(self, copy: Callable, to: int, of: int, nbytes: int) -> None:
        self._enter()
        _call(copy, to, of, nbytes, self._awaited.handle)
        self._awaited.sync()

    def writing(self, array: Any) -> CudaWriting:
        """Return a writer to an array, which begins after JAX's work on its memory."""
        self._enter()
        return CudaWriting(self._driver, self._stream, array)


class CudaWriting:
    """A series of copies into one array of JAX."""

    def __init__(self, driver: Any, stream: Any, array: Any) -> None:
        self._driver, self._stream, self._handle = driver, stream, stream.handle
        self._after = After(array, stream)
        self._start = array.unsafe_buffer_pointer()
        self._ended: Any = None

    def copy(self, pieces: Sequence[Piece]) -> None:
        """Start copies from the host's memory to the array."""
        # By one call of the driver: with a call for each of 64 images the GPU took 1.1
        # times as long.
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
        """Record that all copies have been started."""
        self._ended = self._after.mark()

    def array(self) -> Any:
        """Return the array for JAX, which waits on the GPU for the copies."""
        import jax

        return jax.dlpack.from_dlpack(self._after)

    def wait(self) -> None:
        """Wait on the host until the copies that were started are done."""
        (self._stream if self._ended is None else self._ended).sync()


def _call(function: Callable, *args: Any) -> None:
    """Call a function of the driver; raise RuntimeError if it fails."""
    (status,) = function(*args)
    if status:
        raise RuntimeError(f"{function.__name__}: {status.name}")


# -- arrays between streams


class Capsule:
    """An array of JAX, for a consumer such as NCCL that does not wait by itself.

    A stream of `cuda.core` waits for JAX's computations of the array, and before it.
    """

    def __init__(self, array: Any, stream: Any) -> None:
        self._device = array.__dlpack_device__()
        self._capsule = array.__dlpack__(stream=int(stream.handle))

    def __dlpack__(self, **options: Any) -> Any:
        """Return the capsule; it can be used once."""
        return self._capsule

    def __dlpack_device__(self) -> Any:
        """Return DLPack's name of the array's device."""
        return self._device


class After(Capsule):
    """An array that a stream writes to, for JAX, which waits for the stream."""

    def __init__(self, array: Any, stream: Any) -> None:
        super().__init__(array, stream)
        self._stream = self._awaited = stream

    def mark(self) -> Any:
        """Record an event on the stream, and return it: JAX waits for no later work."""
        self._awaited = self._stream.record()
        return self._awaited

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        """Return the capsule; `stream`, or else the host, waits for our stream."""
        if stream is None:
            self._awaited.sync()
        elif stream != -1:
            import_module("cuda.core").Stream.from_handle(stream).wait(self._awaited)
        return self._capsule
