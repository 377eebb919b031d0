"""Paths of files on this machine, and URLs of files, which fsspec reads."""

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
"""The names that fsspec's file systems use for a file's version or time of change."""


def is_url(path: str) -> bool:
    """Return whether a path is a URL: https, s3, gs, abfs, hdfs, memory, ..."""
    return "://" in path


def absolute(path: str) -> str:
    """Return an absolute path, for processes in other folders; a URL as it is."""
    return path if is_url(path) else os.path.abspath(path)


def ending(path: str, ends: Iterable[str]) -> str | None:
    """Return the one of `ends` that a file's name ends with, or None."""
    name = path.partition("?")[0] if is_url(path) else path
    name = name.rstrip("/").lower()
    return next((end for end in ends if name.endswith(end)), None)


def stamp(path: str) -> tuple[int, int]:
    """Return a file's size, and a number that differs once the file is changed."""
    if not is_url(path):
        found = os.stat(path)
        return found.st_size, found.st_mtime_ns
    # A table of Zarr is a folder, and web servers do not serve folders.
    system, place = _system(path + "/zarr.json" if path.endswith(".zarr") else path)
    info = system.info(place)
    told = repr([info.get(key) for key in _VERSION_KEYS]).encode()
    version = int.from_bytes(hashlib.sha256(told).digest()[:8])
    return info.get("size") or 0, version


def listed(folder: str) -> list[str] | None:
    """Return the paths of all entries of a folder, or None if it is not a folder."""
    if not is_url(folder):
        return [*map(str, Path(folder).iterdir())] if Path(folder).is_dir() else None
    system, place = _system(folder)
    if not system.isdir(place):
        return None
    return [system.unstrip_protocol(path) for path in system.ls(place, detail=False)]


def opened(path: str, is_read_once: bool = False) -> Any:
    """Return a source for pyarrow: the path itself, or an open file for a URL.

    A file of a URL reads only the bytes that pyarrow asks for; with `is_read_once`,
    from beginning to end, it reads ahead.
    """
    if not is_url(path):
        return path
    system, place = _system(path)
    return system.open(place, "rb", cache_type="readahead" if is_read_once else "none")


def _system(url: str) -> tuple[Any, str]:
    """Return a URL's file system of fsspec, and the file's path in it."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ImportError(
            f"{url}: files behind URLs need the package fsspec:"
            " pip install 'synk[remote]'"
        ) from error
    system, place = url_to_fs(url, use_listings_cache=False)
    return system, place
