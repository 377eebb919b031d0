"""Copies from pinned memory to a GPU's, on a stream beside those of JAX."""

from __future__ import annotations

import contextlib
import threading
from importlib import import_module
from typing import Any

from .dlpack import After


class CudaCopier:
    """Copies by the CUDA driver, to the one GPU that this process sees.

    Raises
    ------
    ImportError
        If cuda-bindings or cuda-core is not installed.
    RuntimeError
        If the driver refuses.
    """

    def __init__(self) -> None:
        self._driver: Any = import_module("cuda.bindings.driver")
        core = import_module("cuda.core")
        self._threads = threading.local()
        try:
            self._device: Any = core.Device(0)
            self._enter()
            self._stream: Any = self._device.create_stream()
        except Exception as error:  # cuda.core's own, which it does not export
            raise RuntimeError(str(error)) from error

    def _enter(self) -> None:
        """Have this thread use the GPU's primary context, which is XLA's too."""
        if not getattr(self._threads, "have_entered", False):
            self._device.set_current()
            self._threads.have_entered = True

    def register(self, start: int, nbytes: int) -> None:
        """Pin memory of the host, from the start of a page on."""
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

    def copy(self, at: int, source: int, nbytes: int) -> None:
        """Start to copy from an address of the host to byte `at` of the array."""
        (status,) = self._driver.cuMemcpyHtoDAsync(
            self._start + at, source, nbytes, self._handle
        )
        if status != self._driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"cuMemcpyHtoDAsync: {status.name}")

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
