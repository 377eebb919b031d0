"""The files of checkpoints: arrays by name in ``.npz`` or ``.safetensors``, atomically.

A new file is written without a name in the same folder, flushed to the disk, and then
replaces the old one in a single step. So at every moment, after a crash too, `path` is
the old file or the new one, and never a part of either.

Nothing is pickled: reading a file never runs code from it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import CheckpointError
from ..memory.descriptors import opened


class Format(NamedTuple):
    """A file format: its functions to write and read arrays by name."""

    write: Callable[[Path, Mapping[str, np.ndarray]], None]
    read: Callable[[Path, Mapping[str, int]], dict[str, np.ndarray]]


def format_of(path: Path) -> Format:
    """Return the format of a file, by its extension."""
    found = FORMATS.get(path.suffix.lower())
    if found is None:
        raise ValueError(
            f"a checkpoint's path must end in {' or '.join(FORMATS)}, got {str(path)!r}"
        )
    return found


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to a file; if that fails, the old file stays as it was."""
    kind = format_of(path)
    with replacing(path) as temporary:
        kind.write(temporary, arrays)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of an empty file to write, which replaces `path` afterwards.

    The new file is in the same folder; it is removed if the ``with`` block raises.
    """
    target = Path(os.path.realpath(path))  # a link stays one
    named = target.with_name(f".synk-{os.getpid()}-{secrets.token_hex(8)}")
    temporary, file = _new_file(named)
    descriptor = file.fileno()
    try:
        _keep_permissions(target, descriptor)
        yield temporary
        os.fsync(descriptor)
        if temporary != named:
            # Without a descriptor of a folder, Python would not follow the link.
            os.link(temporary, named, src_dir_fd=descriptor, follow_symlinks=True)
        os.replace(named, target)
    except BaseException:
        with contextlib.suppress(OSError):
            named.unlink(missing_ok=True)
        raise
    finally:
        file.close()
    _flush(target.parent)  # the new name itself


def _new_file(named: Path) -> tuple[Path, io.FileIO]:
    """Make a file in the folder of `named`; return its path, and the file opened.

    The file has no name if the file system can do that (the path is then in /proc), so
    that nothing is left if the process is killed; otherwise it is `named`. Its
    permissions follow from the user's umask.
    """
    try:
        file = _opened(named.parent, os.O_TMPFILE)
    except OSError:
        return named, _opened(named, os.O_CREAT | os.O_EXCL)
    return Path(f"/proc/self/fd/{file.fileno()}"), file


def _opened(path: Path, flags: int) -> io.FileIO:
    """Open a file as an object, which closes it when it is garbage-collected."""
    flags |= os.O_RDWR | os.O_CLOEXEC
    return opened(os.open, path, flags, 0o666, mode="r+")


def _keep_permissions(old: Path, descriptor: int) -> None:
    """Give a new file the owner and the permissions of the old one, if there is one."""
    try:
        found = os.stat(old)
    except OSError:
        return
    with contextlib.suppress(OSError):  # only root gives files away
        os.fchown(descriptor, found.st_uid, found.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(found.st_mode))


def _flush(folder: Path) -> None:
    """Wait until a folder's list of names is on the disk."""
    opened: list[int] = []
    try:
        opened.extend(map(os.open, (folder,), (os.O_RDONLY | os.O_DIRECTORY,)))
        os.fsync(opened[0])
    finally:
        for descriptor in opened:
            os.close(descriptor)


def read_arrays(path: Path, names: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Return the arrays that `names` names; the file may have others too.

    `names` has the bytes expected for each: those of the variable's present value.
    Raises CheckpointError if the file is damaged, lacks a name, or inflates to far more
    bytes than expected; OSError if it does not exist or cannot be opened.
    """
    kind = format_of(path)
    with open(path, "rb"):
        pass
    try:
        return kind.read(path, names)
    except (CheckpointError, ImportError, MemoryError):
        raise
    except Exception as error:  # what a damaged file raises has no common class
        raise CheckpointError(
            f"{path} is damaged, or no {path.suffix} file"
            f" ({type(error).__name__}: {error})"
        ) from error


def _check_present(path: Path, names: Iterable[str], present: Sequence[str]) -> None:
    missing = [name for name in names if name not in present]
    if missing:
        shown = ", ".join(sorted(present)[:20]) or "nothing"
        more = f" and {len(present) - 20} more" if len(present) > 20 else ""
        raise CheckpointError(
            f"{path} has no value for {', '.join(missing)}; it has {shown}{more}"
        )


# -- .npz: numpy's zip archive of .npy files -------------------------------------------


def _write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    # Not by np.savez, which cannot store arrays named "file" or "allow_pickle".
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy")
            with archive.open(member, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def _read_npz(path: Path, names: Mapping[str, int]) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(path) as archive:
        present = [name.removesuffix(".npy") for name in archive.namelist()]
        _check_present(path, names, present)
        for name, nbytes in names.items():
            _check_inflation(path, archive.getinfo(f"{name}.npy"), nbytes)
        # `read` compares a member's checksum before anything is made of its bytes.
        return {
            name: np.lib.format.read_array(
                io.BytesIO(archive.read(f"{name}.npy")), allow_pickle=False
            )
            for name in names
        }


_HUGE = 1 << 26  # bytes that a member may always have
_DENSE = 100  # times its stored size that a member may always have


def _check_inflation(path: Path, member: zipfile.ZipInfo, nbytes: int) -> None:
    """Raise if a small member of an archive inflates to far more than `nbytes`.

    zipfile never reads more bytes of a member than the archive says.
    """
    size, stored = member.file_size, member.compress_size
    if size > max(_HUGE, 2 * nbytes) and size > _DENSE * stored:
        raise CheckpointError(
            f"{path}: {member.filename} has {stored:,} bytes, which inflate to"
            f" {size:,}, and {nbytes:,} are expected; np.load reads it all the same"
        )


# -- .safetensors ----------------------------------------------------------------------

_CHECKSUMS = "synk.checksums"
"""The entry of the header's text that has synk's checksums: the format has none."""


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise ImportError(
            "checkpoints in .safetensors need the package safetensors:"
            " pip install safetensors, or use .npz"
        ) from error
    return safetensors


def _write_safetensors(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    library = _safetensors()
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise TypeError(
                f"{name} is {array.dtype}, which .safetensors does not have; use .npz"
            )
    sums = {name: _checksum(array) for name, array in arrays.items()}
    text = {_CHECKSUMS: json.dumps(sums)}
    # Not by its save_file: that makes a file of its own, with its own permissions.
    path.write_bytes(library.numpy.save(dict(arrays), text))


def _read_safetensors(path: Path, names: Mapping[str, int]) -> dict[str, np.ndarray]:
    with _safetensors().safe_open(path, framework="numpy") as file:
        _check_present(path, names, list(file.keys()))
        arrays = {name: file.get_tensor(name) for name in names}
        sums = json.loads((file.metadata() or {}).get(_CHECKSUMS, "null"))
    if sums is not None:  # `synk.save` has written the file
        for name, array in arrays.items():
            if sums.get(name) != _checksum(array):
                raise CheckpointError(f"{path} is damaged: bad checksum of {name}")
    return arrays


def _checksum(array: np.ndarray) -> int:
    kind = zlib.crc32(f"{array.dtype.str} {array.shape}".encode())
    return zlib.crc32(array.reshape(-1).view(np.uint8).data, kind)


FORMATS = {
    ".npz": Format(_write_npz, _read_npz),
    ".safetensors": Format(_write_safetensors, _read_safetensors),
}
