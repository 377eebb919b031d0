"""A function of synk's beside the same by JAX alone: what `conv` and `pool` print."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from synk.commands.bench_rows import interleave


def line(
    what: str, synks: Callable, jaxs: Callable, arrays: tuple[Any, ...], turns: int
) -> str:
    """Return medians of interleaved turns, and synk's time over JAX's."""
    functions = [partial(_finished, function, *arrays) for function in (synks, jaxs)]
    ours, theirs = interleave(functions, turns)
    ratio = ours / theirs
    return f"{what}{ours * 1e3:7.2f} ms{theirs * 1e3:7.2f} ms{ratio:7.2f}"


def _finished(function: Callable, *args: Any) -> None:
    jax.block_until_ready(function(*args))
