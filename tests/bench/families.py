"""What is compared with what, how results are checked, and what synk is to reach."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from . import mlp, tasks
from .driver import Spec
from .options import Options
from .rounds import Aim, Entry, Family

PLAIN = "plain PyTensor, all cores"
PEERS = "bench.peers."
STEPS = 5
"""Training steps whose losses are checked."""


def training(options: Options) -> Family:
    """Return the training step: the same numbers from everyone."""
    n = options.ranks
    uneven = [batch for batch in options.batches if batch % n]
    skip = f"averages {n} processes, not {uneven[0]} rows" if uneven else None
    peers = {
        "synk": Spec(PEERS + "mlp_synk"),
        "pytensor": Spec(PEERS + "mlp_pytensor"),
        "jax": Spec(PEERS + "mlp_jax", needs=("jax",)),
        "torch": Spec(PEERS + "mlp_torch", needs=("torch",)),
        "torch DDP": Spec(PEERS + "mlp_ddp", needs=("torch",), processes="each"),
    }
    labels = {
        f"synk, {n} ranks": "synk",
        PLAIN: "pytensor",
        "JAX, all cores": "jax",
        "torch, all cores": "torch",
        f"torch DDP on Gloo, {n} processes": "torch DDP",
    }
    layers = "-".join(map(str, options.layers))
    one, more = str(options.batches[0]), str(options.batches[-1])
    return Family(
        title=f"training step, {layers}, {options.activation}, SGD, float32",
        columns={str(batch): f"batch {batch}" for batch in options.batches},
        peers=peers,
        entries=[
            Entry(label, peer, "step {}", "losses {}", skip if "DDP" in peer else None)
            for label, peer in labels.items()
        ],
        steps=STEPS,
        judge=functools.partial(judge_losses, options),
        pause=options.pause,
        aims=[Aim("torch DDP", {one: 1}), Aim("plain", {one: 1, more: 1.25})],
    )


def judge_losses(options: Options, column: str, answers: list) -> str | None:
    """Compare losses with the right ones."""
    return _judge(answers, mlp.reference(options, int(column), STEPS))


def _judge(answers: list, right: list[float]) -> str | None:
    """Compare the first losses, averaged over processes, with those in float64."""
    losses = np.mean(answers, axis=0)
    if np.allclose(losses, right, rtol=2e-5, atol=0):
        return None
    return f"losses are {losses.tolist()}, should be {right}"


def alone(options: Options) -> Family:
    """Return the training step with one rank."""
    batch = str(options.alone)
    labels = {"synk, 1 rank": "synk", "plain PyTensor": "plain"}
    return Family(
        title="training step on one rank, in one process with plain PyTensor",
        columns={batch: f"batch {batch}"},
        peers={"alone": Spec(PEERS + "mlp_alone")},
        entries=[
            Entry(label, "alone", f"step {name}", f"check {name}")
            for label, name in labels.items()
        ],
        steps=STEPS,
        judge=functools.partial(judge_same_rows, options),
        pause=options.pause,
        aims=[Aim("plain", {batch: 1 / 1.02})],
    )


def judge_same_rows(options: Options, column: str, answers: list) -> str | None:
    """Compare the losses of steps that are all made with the first rows."""
    return _judge(answers, mlp.reference(options, int(column), STEPS, same_rows=True))


def all_reduces(options: Options) -> Family:
    """Return sums over the ranks."""
    n = options.ranks
    mpi = Spec(PEERS + "reduce_mpi", ("mpi4py",), ("mpirun",), "mpi")
    peers = {
        "synk": Spec(PEERS + "reduce_synk"),
        "gloo": Spec(PEERS + "reduce_gloo", ("torch",), processes="each"),
        "MPI": mpi,
        "MPI xhc": mpi._replace(environment=XHC),
    }
    rows = {
        "synk, two buffers": ("synk", "two buffers"),
        "synk, in place": ("synk", "in place"),
        "Gloo, in place": ("gloo", "in place"),
        "MPI, in place": ("MPI", "in place"),
        "MPI, two buffers": ("MPI", "two buffers"),
        "MPI with xhc, in place": ("MPI xhc", "in place"),
        "MPI with xhc, two buffers": ("MPI xhc", "two buffers"),
        "synk, whole call of a function": ("synk", "in a graph"),
        "synk, whole synk.all_reduce(shared)": ("synk", "synk.all_reduce"),
    }
    sizes = list(map(str, options.nbytes))
    ours = "synk, two buffers", "synk, in place"
    return Family(
        title=f"all-reduce of float32, {n} ranks",
        columns={str(nbytes): of_bytes(nbytes) for nbytes in options.nbytes},
        peers=peers,
        entries=[
            Entry(label, peer, f"time {variant} {{}}", f"check {variant} {{}}")
            for label, (peer, variant) in rows.items()
        ],
        steps=1,
        judge=functools.partial(judge_sums, n),
        pause=min(options.pause, 0.05),
        aims=[
            Aim("Gloo", {**dict.fromkeys(sizes, 1), sizes[-1]: 4}, ours),
            Aim("MPI", dict.fromkeys(sizes, 1), ours),
        ],
    )


def judge_sums(n: int, column: str, answers: list) -> str | None:
    """Compare the extremes of the sums of 1, 2, ... n with what they all must be."""
    right = n * (n + 1) / 2
    if all(extremes == [right, right] for extremes in answers):
        return None
    return f"least and largest sums are {answers}, should be {right}"


XHC = (("OMPI_MCA_coll_xhc_priority", "100"),)
"""Makes Open MPI use its collectives for ranks that share memory."""


def calls(options: Options) -> Family:
    """Return ways of having all ranks do something."""
    n = options.ranks
    peers = {
        "synk": Spec(PEERS + "call_synk"),
        "pytensor": Spec(PEERS + "call_pytensor"),
        "pool": Spec(PEERS + "call_pool"),
        "executor": Spec(PEERS + "call_executor"),
        "joblib": Spec(PEERS + "call_joblib", ("joblib",)),
        "ray": Spec(PEERS + "call_ray", ("ray",)),
    }
    rows = {
        f"synk, {n} ranks": ("synk", "call"),
        "plain PyTensor, not parallel": ("pytensor", "call"),
        "multiprocessing.Pool.map": ("pool", "call"),
        "ProcessPoolExecutor.map": ("executor", "call"),
        "joblib.Parallel on loky": ("joblib", "call"),
        "Ray, tasks": ("ray", "tasks"),
        "Ray, actors": ("ray", "actors"),
    }
    height, width = options.shape
    return Family(
        title=f"a call of {n} processes that do nothing, or sum rows of float32",
        columns={"empty": "nothing", "rows": f"sum {height} x {width}"},
        peers=peers,
        entries=[
            Entry(label, peer, f"{name} {{}}", f"check {name}")
            for label, (peer, name) in rows.items()
        ],
        steps=1,
        judge=functools.partial(judge_total, options),
        pause=min(options.pause, 0.05),
    )


def judge_total(options: Options, column: str, answers: list) -> str | None:
    """Compare a sum with the right one."""
    right = float(tasks.array(options).sum(dtype="float64"))
    return None if answers == [[right]] else f"sum is {answers[0]}, should be {right}"


def of_bytes(nbytes: int) -> str:
    """Write a number of bytes.

    >>> of_bytes(4), of_bytes(65_536), of_bytes(5_000_000)
    ('4 B', '64 KiB', '5 MB')
    """
    if nbytes < 1024:
        return f"{nbytes} B"
    if nbytes % 1024 == 0 and nbytes < 1 << 20:
        return f"{nbytes // 1024} KiB"
    return f"{nbytes / 1e6:g} MB"


FAMILIES: dict[str, Callable[[Options], Family]] = {
    "mlp": training,
    "alone": alone,
    "all-reduce": all_reduces,
    "call": calls,
}
