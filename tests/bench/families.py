"""What is compared with what, and how results are checked."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from . import likelihoods, networks
from .driver import Spec
from .peers import calls as of_calls
from .report import of_bytes
from .rounds import Entry, Family
from .work import Options

PEERS = "bench.peers."
STEPS = 5
"""Training steps whose losses are checked."""

ENGINES = {"numba": "NUMBA", "JAX": "JAX"}
MODES = {"C": "CVM"} | ENGINES
NEEDS = {"C": {"programs": ("g++",)}, "numba": {}, "JAX": {"needs": ("jax",)}}
IN_JAX = ("JAX_COMPILATION_CACHE_DIR",)
"""What a script in JAX sets."""

READ = "one read of X, all cores"


# -- engines


def likelihood(options: Options) -> Family:
    """Return log-likelihoods with their gradients."""
    rows = _of_synk("likelihood", options) | _of_pytensor("likelihood")
    rows |= {
        "JAX by hand, all cores": Spec(
            PEERS + "in_jax:likelihood", needs=("jax",), caches=IN_JAX
        ),
        "numba by hand, all cores": Spec(
            PEERS + "in_numba", caches=("NUMBA_CACHE_DIR",)
        ),
        "torch, all cores": Spec(PEERS + "in_torch:likelihood", needs=("torch",)),
    }
    columns = likelihoods.COLUMNS
    read = Entry(READ, "numba by hand, all cores", "time read")
    return Family(
        title=f"log-likelihood and its gradient, {options.points:,} x"
        f" {likelihoods.WIDTH}, float64",
        columns=columns,
        peers=rows,
        entries=[*map(_entry, rows), read],
        judge=functools.partial(judge_likelihood, options),
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
    judge = functools.partial(judge_losses, options)
    return _training(options, f"{layers}, SGD, float32", options.steps, judge)


def cnn(options: Options) -> Family:
    """Return the training step of a convolutional network."""
    title = f"two convolutions and two dense layers of {options.side} x {options.side}"
    title += " images, SGD, float32"
    judge = functools.partial(judge_as_first, {}, 2e-5)
    # PyTensor by itself does not compile the pooling for JAX.
    return _training(options, title, options.images, judge, modes=("C", "numba"))


def _training(
    options: Options,
    title: str,
    columns: tuple[str, ...],
    judge: Callable,
    modes: tuple[str, ...] = tuple(MODES),
) -> Family:
    n = options.ranks
    rows = _of_synk("train", options) | _of_pytensor("train", modes)
    in_torch = Spec(PEERS + "in_torch:training", needs=("torch",))
    rows |= {
        "JAX by hand, all cores": Spec(
            PEERS + "in_jax:training", needs=("jax",), caches=IN_JAX
        ),
        "torch, all cores": in_torch,
        f"synk.torch, {_ranks(n)}": in_torch._replace(
            module=in_torch.module + "_by_synk"
        ),
    }
    if not any(int(column.split()[1]) % n for column in columns):
        # It averages processes: that is the mean of all rows where they have as many.
        by_ddp = in_torch._replace(module=in_torch.module + "_by_ddp", processes="each")
        rows[f"torch DDP on Gloo, {n} processes"] = by_ddp
    return Family(
        title=f"training step, {title}",
        columns={column: _heading(column) for column in columns},
        peers={label: _asked(spec, columns) for label, spec in rows.items()},
        entries=list(map(_entry, rows)),
        steps=STEPS,
        judge=judge,
        first=columns[:1],
    )


def judge_losses(options: Options, column: str, answers: list) -> str | None:
    """Compare the first losses, averaged over processes, with those in float64."""
    losses = np.mean(answers, axis=0)
    right = networks.reference(options, column, len(losses))
    if np.allclose(losses, right, rtol=2e-5, atol=0):
        return None
    return f"losses are {losses.tolist()}, should be {right}"


def judge_as_first(
    seen: dict[str, np.ndarray], rtol: float, column: str, answers: list
) -> str | None:
    """Compare the mean of the processes' answers with the first that was seen."""
    found = np.mean(answers, axis=0)
    right = seen.setdefault(column, found)
    if np.allclose(found, right, rtol=rtol, atol=rtol):
        return None
    return f"there are {found.tolist()}, the first has {right.tolist()}"


def _of_synk(work: str, options: Options) -> dict[str, Spec]:
    """Return synk as it comes, and with each engine on all ranks and on one."""
    module = f"{PEERS}in_pytensor:{work}_synk"
    auto = (("SYNK_ENGINE", "auto"),)
    n = options.ranks
    found = {f"synk, as it comes, {_ranks(n)}": Spec(module, environment=auto)}
    for engine, mode in ENGINES.items():
        for n in sorted({options.ranks, 1}, reverse=True):
            asked: dict[str, Any] = {"mode": mode, "ranks": n}
            label = f"synk, {engine}, {_ranks(n)}"
            found[label] = Spec(module, options=asked, **NEEDS[engine])
    return found


def _ranks(n: int) -> str:
    return f"{n} rank{'s' * (n > 1)}"


def _of_pytensor(work: str, modes: tuple[str, ...] = tuple(MODES)) -> dict[str, Spec]:
    return {
        f"plain PyTensor, {mode}": Spec(
            f"{PEERS}in_pytensor:{work}_plain",
            options={"mode": MODES[mode]},
            **NEEDS[mode],
        )
        for mode in modes
    }


def _asked(spec: Spec, columns: tuple[str, ...]) -> Spec:
    """Return a peer that is asked for these columns."""
    return spec._replace(options={**spec.options, "columns": columns})


def _entry(label: str) -> Entry:
    """Return the row of a peer that has its name."""
    tune = "tune {}" if label.startswith("synk, as it comes") else None
    return Entry(label, label, run="run {}", tune=tune)


def _heading(column: str) -> str:
    """Write what is in a column.

    >>> _heading("relu 512")
    '512 rows, relu'
    """
    kind, rows = column.split()
    return f"{rows} rows" if kind == "cnn" else f"{rows} rows, {kind}"


# -- peers


def all_reduces(options: Options) -> Family:
    """Return sums over the ranks."""
    n = options.ranks
    mpi = Spec(PEERS + "reductions:of_mpi", ("mpi4py",), ("mpirun",), "mpi")
    # Has Open MPI use its collectives for ranks that share memory.
    xhc = mpi._replace(environment=(("OMPI_MCA_coll_xhc_priority", "100"),))
    peers = {
        "synk": Spec(PEERS + "reductions:of_synk"),
        "gloo": Spec(PEERS + "reductions:of_gloo", ("torch",), processes="each"),
        "MPI": mpi,
        "MPI xhc": xhc,
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
    return Family(
        title=f"all-reduce of float32, {n} ranks",
        columns={str(nbytes): of_bytes(nbytes) for nbytes in options.nbytes},
        peers=peers,
        entries=[
            Entry(label, peer, f"time {variant} {{}}", f"check {variant} {{}}")
            for label, (peer, variant) in rows.items()
        ],
        judge=functools.partial(judge_sums, n),
    )


def judge_sums(n: int, column: str, answers: list) -> str | None:
    """Compare the extremes of the sums of 1, 2, ... n with what they all must be."""
    right = n * (n + 1) / 2
    if all(extremes == [right, right] for extremes in answers):
        return None
    return f"least and largest sums are {answers}, should be {right}"


def calls(options: Options) -> Family:
    """Return ways of having all ranks do something."""
    n = options.ranks
    rows = {
        f"synk, {n} ranks": ("synk", "call"),
        "plain PyTensor, not parallel": ("pytensor", "call"),
        "multiprocessing.Pool.map": ("pool", "call"),
        "ProcessPoolExecutor.map": ("executor", "call"),
        "joblib.Parallel on loky": ("joblib", "call"),
        "Ray, tasks": ("ray", "tasks"),
        "Ray, actors": ("ray", "actors"),
    }
    needs = {"joblib": ("joblib",), "ray": ("ray",)}
    height, width = options.shape
    return Family(
        title=f"a call of {n} processes that do nothing, or sum rows of float32",
        columns={"empty": "nothing", "rows": f"sum {height} x {width}"},
        peers={
            peer: Spec(f"{PEERS}calls:of_{peer}", needs.get(peer, ()))
            for peer, _ in rows.values()
        },
        entries=[
            Entry(label, peer, f"{name} {{}}", f"check {name}")
            for label, (peer, name) in rows.items()
        ],
        judge=functools.partial(judge_total, options),
    )


def judge_total(options: Options, column: str, answers: list) -> str | None:
    """Compare a sum with the right one."""
    right = float(of_calls.array(options).sum(dtype="float64"))
    return None if answers == [[right]] else f"sum is {answers[0]}, should be {right}"


# -- training rules


def exchange(options: Options) -> Family:
    """Return exchanges of all of a network's parameters."""
    rules = "EASGD, free", "ASGD, free", "EASGD"
    counts = sorted({1, options.ranks})
    peers = {
        _ranks(n): Spec(PEERS + "exchanges:alone", options={"ranks": n}) for n in counts
    }
    copy = Entry("a copy, by one core", _ranks(1), "copy")
    return Family(
        title="an exchange of a network's parameters by a rule, by all ranks at once",
        columns={rule: rule for rule in rules},
        peers={label: _asked(spec, rules) for label, spec in peers.items()},
        entries=[copy, *(Entry(label, label) for label in peers)],
        judge=lambda column, answers: None if answers == [0] else f"{answers}, not 0",
    )


def training(options: Options) -> Family:
    """Return training by a rule, and without one."""
    column = f"relu {options.each}"
    modules = {"": "training", ", EASGD": "training_by_rule"}
    peers = {
        _ranks(n) + what: Spec(
            f"{PEERS}exchanges:{module}", options={"ranks": n, "mode": "NUMBA"}
        )
        for n in sorted({1, options.ranks})
        for what, module in modules.items()
    }
    return Family(
        title="a row of training by steps of each rank, with an exchange every 10",
        columns={column: f"{options.each} rows a step and rank"},
        peers={label: _asked(spec, (column,)) for label, spec in peers.items()},
        entries=[Entry(label, label) for label in peers],
        judge=functools.partial(judge_losses, options),
    )


# -- PyMC's models


def densities(options: Options) -> Family:
    """Return log-densities with their gradients."""
    kinds = "logistic", "Poisson", "Student-t", "negative binomial", "hierarchical"
    columns = tuple(f"{kind} {options.observed}" for kind in kinds)
    peers = {f"synk, {_ranks(options.ranks)}": Spec(PEERS + "in_pymc:by_ranks")}
    for engine, mode in MODES.items():
        way, needs = ("in_jax", ("jax",)) if engine == "JAX" else ("by_pymc", ())
        label = f"{engine}, all cores"
        peers[label] = Spec(f"{PEERS}in_pymc:{way}", needs, options={"mode": mode})
    entries = [Entry(label, label) for label in peers]
    title = f"log-density and gradient of PyMC's models, {options.observed:,} rows"
    return _of_pymc(options, title, columns, peers, entries)


def chains(options: Options) -> Family:
    """Return a step of as many chains as cores: side by side, or in turn by all."""
    columns = tuple(f"logistic {rows}" for rows in options.chains)
    in_turn, beside = "in turn, by all ranks", "side by side, in numba mode"
    mode = {"mode": "NUMBA", "ranks": options.cores}
    peers = {
        in_turn: Spec(PEERS + "in_pymc:by_ranks"),
        beside: Spec(PEERS + "in_pymc:by_pymc", processes="each", options=mode),
    }
    entries = [Entry(in_turn, in_turn, "in turn {}"), Entry(beside, beside)]
    title = f"a step of {options.cores} chains of a logistic regression by PyMC"
    return _of_pymc(options, title, columns, peers, entries)


def _of_pymc(
    options: Options, title: str, columns: tuple, peers: dict, entries: list
) -> Family:
    return Family(
        title=title,
        columns={column: column for column in columns},
        peers={
            label: _asked(spec, columns)._replace(needs=("pymc", *spec.needs))
            for label, spec in peers.items()
        },
        entries=entries,
        judge=functools.partial(judge_as_first, {}, 1e-9),
    )


GROUPS: dict[str, dict[str, Callable[[Options], Family]]] = {
    "engines": {"likelihood": likelihood, "mlp": mlp, "cnn": cnn},
    "peers": {"all-reduce": all_reduces, "call": calls},
    "rules": {"exchange": exchange, "training": training},
    "pymc": {"density": densities, "chains": chains},
}
"""What one command measures, by the name of its page in the documentation."""
