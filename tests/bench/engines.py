"""synk's engines beside what else computes the same: likelihoods and training steps."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from . import likelihoods, network_losses
from .driver import Spec
from .options import Options
from .rounds import Aim, Entry, Family

PEERS = "bench.peers."
STEPS = 5
"""Training steps whose losses are checked."""

MODES = {"C": "CVM", "numba": "NUMBA", "JAX": "JAX"}
NEEDS = {
    "C": {"programs": ("g++",)},
    "numba": {},
    "JAX": {"needs": ("jax",)},
}
IN_JAX = ("JAX_COMPILATION_CACHE_DIR",)
"""What a script in JAX sets."""

READ = "one read of X, all cores"
OTHERS = ("plain PyTensor", "JAX by hand", "torch")


def likelihood(options: Options) -> Family:
    """Return log-likelihoods with their gradients."""
    rows = _of_synk("likelihood", options) | _of_pytensor("likelihood")
    jax = Spec(PEERS + "likelihood_jax", needs=("jax",), caches=IN_JAX)
    by_numba = Spec(PEERS + "likelihood_numba", caches=("NUMBA_CACHE_DIR",))
    rows |= {
        "JAX by hand, all cores": jax,
        "numba by hand, all cores": by_numba,
        "torch, all cores": Spec(PEERS + "likelihood_torch", needs=("torch",)),
    }
    columns = likelihoods.COLUMNS
    read = Entry(READ, "numba by hand, all cores", "time read", "check {}")
    return Family(
        title=f"log-likelihood and its gradient, {options.points:,} x"
        f" {likelihoods.WIDTH}, float64",
        columns=columns,
        peers=rows,
        entries=[*map(_entry, rows), read],
        steps=1,
        judge=functools.partial(judge_likelihood, options),
        pause=options.pause,
        aims=[
            Aim(label, dict.fromkeys(columns, 1 / 0.6))
            for label in (*OTHERS, "numba by hand")
        ],
        first=tuple(columns),
    )


def judge_likelihood(options: Options, column: str, answers: list) -> str | None:
    """Compare value and gradient with the right ones."""
    right = likelihoods.reference(options, column)
    found = np.array(answers[0])
    if found.shape == np.shape(right) and np.allclose(
        found, right, rtol=1e-9, atol=1e-9 * abs(right[0])
    ):
        return None
    return f"value and gradient are {found.tolist()}, should be {right}"


def mlp(options: Options) -> Family:
    """Return the training steps of a dense network."""
    layers = "-".join(map(str, options.layers))
    return _training(options, f"{layers}, SGD, float32", options.steps)


def cnn(options: Options) -> Family:
    """Return the training step of a convolutional network."""
    title = f"two convolutions and two dense layers of {options.side} x {options.side}"
    title += " images, SGD, float32"
    return _training(options, title, options.images)


def _training(options: Options, title: str, columns: tuple[str, ...]) -> Family:
    n = options.ranks
    uneven = [column for column in columns if int(column.split()[1]) % n]
    skip = f"averages {n} processes, not {uneven[0]} rows" if uneven else None
    rows = _of_synk("train", options) | _of_pytensor("train")
    ddp = f"torch DDP on Gloo, {n} processes"
    rows |= {
        "JAX by hand, all cores": Spec(
            PEERS + "train_jax", needs=("jax",), caches=IN_JAX
        ),
        "torch, all cores": Spec(PEERS + "train_torch", needs=("torch",)),
        ddp: Spec(PEERS + "train_ddp", needs=("torch",), processes="each"),
    }
    asked = {"columns": columns}
    return Family(
        title=f"training step, {title}",
        columns={column: _heading(column) for column in columns},
        peers={
            label: spec._replace(options={**spec.options, **asked})
            for label, spec in rows.items()
        },
        entries=[
            entry._replace(skip=skip if entry.label == ddp else None)
            for entry in map(_entry, rows)
        ],
        steps=STEPS,
        judge=functools.partial(judge_losses, options),
        pause=options.pause,
        aims=[Aim(label, dict.fromkeys(columns, 1)) for label in OTHERS],
        first=columns[:1],
    )


def judge_losses(
    options: Options, column: str, answers: list, same_rows: bool = False
) -> str | None:
    """Compare the first losses, averaged over processes, with those in float64."""
    right = network_losses.reference(options, column, STEPS, same_rows)
    losses = np.mean(answers, axis=0)
    if np.allclose(losses, right, rtol=2e-5, atol=0):
        return None
    return f"losses are {losses.tolist()}, should be {right}"


def _of_synk(work: str, options: Options) -> dict[str, Spec]:
    """Return synk as it comes, and with each engine on all ranks and on one."""
    module = f"{PEERS}{work}_synk"
    counts = sorted({options.ranks, 1}, reverse=True)
    auto = (("SYNK_ENGINE", "auto"),)
    found = {as_it_comes(options): Spec(module, environment=auto)}
    for engine, mode in MODES.items():
        for n in counts:
            asked: dict[str, Any] = {"mode": mode, "ranks": n}
            label = f"synk, {engine}, {n} rank{'s' * (n > 1)}"
            found[label] = Spec(module, options=asked, **NEEDS[engine])
    return found


def as_it_comes(options: Options) -> str:
    """Return the label of synk without any option."""
    return f"synk, as it comes, {options.ranks} rank{'s' * (options.ranks > 1)}"


def _of_pytensor(work: str) -> dict[str, Spec]:
    return {
        f"plain PyTensor, {engine}": Spec(
            f"{PEERS}{work}_pytensor", options={"mode": mode}, **NEEDS[engine]
        )
        for engine, mode in MODES.items()
    }


def _entry(label: str) -> Entry:
    """Return the row of a peer that has its name."""
    return Entry(
        label,
        label,
        "time {}",
        "check {}",
        run="run {}",
        tune="tune {}" if label.startswith("synk, as it comes") else None,
    )


def _heading(column: str) -> str:
    """Write what is in a column.

    >>> _heading("relu 512")
    '512 rows, relu'
    """
    kind, rows = column.split()
    return f"{rows} rows" if kind == "cnn" else f"{rows} rows, {kind}"
