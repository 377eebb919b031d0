"""What is compared with what, how results are checked, and what synk is to reach.

The engines are in `engines`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from . import engines, tasks
from .driver import Spec
from .engines import PEERS
from .options import Options
from .rounds import Aim, Entry, Family
from .units import of_bytes


def alone(options: Options) -> Family:
    """Return the training step with one rank."""
    column = f"relu {options.alone}"
    labels = {"synk, 1 rank": "synk", "plain PyTensor": "plain"}
    return Family(
        title="training step on one rank, in one process with plain PyTensor",
        columns={column: f"batch {options.alone}"},
        peers={"alone": Spec(PEERS + "train_alone")},
        entries=[
            Entry(label, "alone", f"step {name}", f"check {name}")
            for label, name in labels.items()
        ],
        steps=engines.STEPS,
        judge=functools.partial(engines.judge_losses, options, same_rows=True),
        pause=options.pause,
        aims=[Aim("plain", {column: 1 / 1.02})],
    )


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


GROUPS: dict[str, dict[str, Callable[[Options], Family]]] = {
    "engines": {
        "likelihood": engines.likelihood,
        "mlp": engines.mlp,
        "cnn": engines.cnn,
    },
    "peers": {"alone": alone, "all-reduce": all_reduces, "call": calls},
}
"""What one command measures, by the name of its page in the documentation."""
