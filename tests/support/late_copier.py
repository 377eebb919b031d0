"""A stand-in for CUDA's copies: JAX's arrays on the CPU, written as late as may be.

What is copied too early on a GPU, or not waited for, has wrong numbers here.
"""

import ctypes
import mmap


class LateCopier:
    """Copies when somebody waits for it, and watches what is pinned.

    `registered` has the bytes of pinned memory by where it starts; `log` says
    "register" and "unregister", and "copy" with its bytes. Pinning so many bytes fails
    if it `refuses` them.
    """

    def __init__(self, refuses=lambda nbytes: False):
        import jax

        jax.config.update("jax_enable_x64", True)  # as PyTensor's JAX mode does
        self.registered: dict[int, int] = {}
        self.log: list[str] = []
        self.refuses = refuses
        self.open: list[LateWriting] = []

    def register(self, start, nbytes):
        assert start % mmap.PAGESIZE == 0 < nbytes
        for other, length in self.registered.items():
            assert start + nbytes <= other or other + length <= start, "twice"
        if self.refuses(nbytes):
            raise OSError("CUDA_ERROR_OUT_OF_MEMORY")
        self.registered[start] = nbytes
        self.log.append("register")

    def unregister(self, start):
        for writing in self.open:
            writing.wait()
        end = start + self.registered.pop(start)
        # The memory is there still: otherwise this is the end of the process.
        ctypes.string_at(start, end - start)
        self.log.append("unregister")

    def write(self, array, source, nbytes):
        ctypes.memmove(array.unsafe_buffer_pointer(), source, nbytes)
        self.log.append(f"write {nbytes}")

    def read(self, array, target, nbytes):
        assert array.is_ready()
        ctypes.memmove(target, array.unsafe_buffer_pointer(), nbytes)
        self.log.append(f"read {nbytes}")

    def writing(self, array):
        return LateWriting(self, array)


class LateWriting:
    """Copies that are made when they are waited for."""

    def __init__(self, copier, array):
        import jax

        self._copier, self._array = copier, jax.block_until_ready(array)
        self._pending = []
        self._has_ended = False
        copier.open.append(self)

    def copy(self, pieces):
        assert not self._has_ended
        for at, source, nbytes in pieces:
            assert nbytes > 0 <= at <= self._array.nbytes - nbytes
            assert any(
                start <= source and source + nbytes <= start + length
                for start, length in self._copier.registered.items()
            ), "it is not pinned"
            self._pending.append((at, source, nbytes))
            self._copier.log.append(f"copy {nbytes}")

    def end(self):
        assert sum(nbytes for _, _, nbytes in self._pending) == self._array.nbytes
        self._has_ended = True

    def array(self):
        import jax

        assert self._has_ended
        self.wait()
        found = jax.dlpack.from_dlpack(self._array)
        assert found.unsafe_buffer_pointer() == self._array.unsafe_buffer_pointer()
        return found

    def wait(self):
        target = self._array.unsafe_buffer_pointer()
        for at, source, nbytes in self._pending:
            ctypes.memmove(target + at, source, nbytes)
        self._pending.clear()
        if self in self._copier.open:
            self._copier.open.remove(self)
