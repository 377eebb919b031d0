"""Where files are: in folders of this machine, or behind URLs, which fsspec reads."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_VERSION_KEYS = (
    *("ETag", "etag", "Content-MD5", "Digest", "md5Hash", "generation", "sha"),
    *("LastModified", "Last-Modified", "last_modified", "updated", "mtime", "modify"),
    *("modificationTime", "created"),
)
"""What file systems of fsspec call that by which they tell a file from its next."""


def is_url(path: str) -> bool:
    """Tell whether a path is a URL: https, s3, gs, abfs, hdfs, memory, ..."""
    return "://" in path


def absolute(path: str) -> str:
    """Return the same place, for processes in other folders."""
    return path if is_url(path) else os.path.abspath(path)


def ending(path: str, ends: Iterable[str]) -> str | None:
    """Return with which of these a file's name ends, or None."""
    name = path.partition("?")[0] if is_url(path) else path
    name = name.rstrip("/").lower()
    return next((end for end in ends if name.endswith(end)), None)


def stamp(path: str) -> tuple[int, int]:
    """Return a file's size, and what tells it from itself after a change."""
    if not is_url(path):
        found = os.stat(path)
        return found.st_size, found.st_mtime_ns
    # A table of Zarr is a folder, which web servers do not know as one.
    system, place = _system(path + "/zarr.json" if path.endswith(".zarr") else path)
    info = system.info(place)
    told = repr([info.get(key) for key in _VERSION_KEYS]).encode()
    version = int.from_bytes(hashlib.sha256(told).digest()[:8])
    return info.get("size") or 0, version


def listed(folder: str) -> list[str] | None:
    """Return the paths of all that is in a folder, or None if it is none."""
    if not is_url(folder):
        return [*map(str, Path(folder).iterdir())] if Path(folder).is_dir() else None
    system, place = _system(folder)
    if not system.isdir(place):
        return None
    return [system.unstrip_protocol(path) for path in system.ls(place, detail=False)]


def opened(path: str, is_read_once: bool = False) -> Any:
    """Return what pyarrow opens: a path of this machine, or a file behind a URL.

    Of that, what pyarrow asks for is read and no more, unless it is read from its
    beginning to its end.
    """
    if not is_url(path):
        return path
    system, place = _system(path)
    return system.open(place, "rb", cache_type="readahead" if is_read_once else "none")


def _system(url: str) -> tuple[Any, str]:
    """Return a file system of fsspec, and what it calls the file."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ImportError(
            f"{url}: files behind URLs need the package fsspec:"
            " pip install 'synk[remote]'"
        ) from error
    system, place = url_to_fs(url, use_listings_cache=False)
    return system, place
