"""Theano's options from ``~/.theanorc`` and THEANO_FLAGS.

Options in PYTENSOR_FLAGS come first, then those in THEANO_FLAGS, then those of files.
For each source, one warning lists the options without effect.
"""

from __future__ import annotations

import configparser
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from typing import Any


def flags_of(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield (name, value) of ``name=value,name=value``; None for a missing value."""
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        yield name.strip(), value.strip() if equals else None


def theanorc_files(environment: Mapping[str, str]) -> list[str]:
    """Return the files that Theano read, in order: later ones override earlier ones.

    THEANORC, if it is in `environment`, lists files in place of ``~/.theanorc``.
    """
    listed = environment.get("THEANORC")
    paths = ["~/.theanorc"] if listed is None else listed.split(os.pathsep)
    if listed is None and sys.platform == "win32":
        paths.append("~/.theanorc.txt")
    return [os.path.expanduser(path) for path in paths if path]


def _options_of(path: str) -> Iterator[tuple[str, str]]:
    """Yield (name, text) for a file's options, such as ``nvcc.fastmath``."""
    # The values that files may use, as in ``%(USER)s``.
    home = os.path.basename(os.path.expanduser("~"))
    given = {"USER": home, "TMPDIR": tempfile.gettempdir()}
    for name in ("TMPDIR", "TEMP", "TMP", "LSCRATCH", "USER"):
        given[name] = os.environ.get(name, given.get(name, "")).replace("%", "%%")
    given["PID"] = str(os.getpid())
    parser = configparser.ConfigParser(given)
    parser.read(path)
    for section in parser.sections():
        for option in parser.options(section):
            raw = parser.get(section, option, raw=True)
            if given.get(option.upper()) == raw:
                continue
            try:
                value = parser.get(section, option)
            except configparser.InterpolationError:
                value = raw
            yield option if section == "global" else f"{section}.{option}", value


def read_files(config: Any, paths: list[str], flags: str = "") -> None:
    """Set options from files in the form of ``~/.theanorc``.

    Missing files, and options named in `flags` (THEANO_FLAGS) or PYTENSOR_FLAGS, are
    skipped. A warning for each file lists the options without effect, or says that the
    file cannot be read.
    """
    left = {name for name, _ in flags_of(flags)} | _of_pytensor_flags()
    left = {name.replace("__", ".").lower() for name in left}
    spelled = {name.lower(): name for name in config._names()}
    for path in paths:
        try:
            options = dict(_options_of(path))
        except (configparser.Error, OSError, UnicodeDecodeError) as error:
            warnings.warn(f"{path} is not read: {error}", stacklevel=3)
            continue
        vain = [
            said
            for name, text in options.items()
            if name.lower() not in left
            if (said := _apply(config, spelled.get(name.lower(), name), text))
        ]
        if vain:
            warnings.warn(f"{path}: without effect: {'; '.join(vain)}", stacklevel=3)


def read_flags(config: Any, flags: str) -> None:
    """Set options from the text of THEANO_FLAGS: ``floatX=float32,device=cpu``.

    Options named in PYTENSOR_FLAGS are skipped. Options without effect give a warning.
    """
    theirs = _of_pytensor_flags()
    for name, text in flags_of(flags):
        if name.replace(".", "__") in theirs or name in theirs:
            continue
        said = _apply(config, name, text, is_quiet=True)
        if said:
            warnings.warn(f"THEANO_FLAGS: without effect: {said}", stacklevel=2)


def _of_pytensor_flags() -> set[str]:
    return {name for name, _ in flags_of(os.environ.get("PYTENSOR_FLAGS", ""))}


def _apply(
    config: Any, name: str, text: str | None, is_quiet: bool = False
) -> str | None:
    """Set an option; return why that has no effect, or None.

    With `is_quiet`, also returns None for options without a meaning in PyTensor.
    """
    shown = name if text is None else f"{name}={text}"
    try:
        if text is None:
            raise ValueError("no value")
        present = config._get(name)
        value = typed(text, present)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            if value != present:
                setattr(config, name, value)
    except (AttributeError, TypeError, ValueError) as error:
        return f"{shown} ({error})"
    if said:
        return f"{shown} ({said[0].message})"
    if name in config._own and value != present and not is_quiet:
        return f"{shown} (which means nothing any more)"
    return None


def typed(text: str, present: Any) -> Any:
    """Return `text` as a value of the type of `present`, the option's value."""
    if isinstance(present, bool):
        if text.lower() in ("true", "1", "yes", "on"):
            return True
        if text.lower() in ("false", "0", "no", "off"):
            return False
        raise ValueError(f"{text!r} is neither True nor False")
    if isinstance(present, int | float):
        return type(present)(float(text))
    return text
