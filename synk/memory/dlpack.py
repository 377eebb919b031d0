"""JAX's arrays between streams of CUDA, by DLPack's protocol and without the host.

Who takes an array by DLPack says on which stream of his it will be used. JAX has that
stream wait for what it computes; here, JAX's stream is made to wait for one of ours.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Capsule:
    """An array of JAX's, for who does not ask to wait for anything.

    Parameters
    ----------
    array : jax.Array
    stream : cuda.core.Stream
        Waits for the array, and so for all that JAX computed before it.
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
