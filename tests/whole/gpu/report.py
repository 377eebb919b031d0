"""What synk does on this machine's GPUs: ``python tests/whole/gpu/report.py``.

Runs the tests that need GPUs, with up to four ranks on one of them, and then what is
timed, each section in a process of its own. ``--only call rows`` runs some of the
sections. It takes at most six minutes (``--minutes``): what there was no time for is
named in the table, which it prints in the end.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT))
IMAGES = (64, 3, 224, 224)  # float32: 38.5 MB
PRECISIONS = ("tensorfloat32", "bfloat16")


class Row(NamedTuple):
    """One line of the table."""

    what: str
    value: str
    beside: str = ""
    ratio: str = ""


def run(command: list[str], limit: float) -> str:
    """Return what a command prints, or raise with the end of it."""
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=limit,
        cwd=ROOT,
        check=False,
    )
    if done.returncode:
        raise RuntimeError((done.stdout + done.stderr)[-2000:])
    return done.stdout


def machine() -> Iterator[Row]:
    """The GPUs, and versions."""
    report = run(["-m", "synk", "info"], 100)
    for line in report.splitlines():
        if re.match(r"  (GPU \d|driver|peer|NCCL|JAX|jax|pytensor|python) ", line):
            label, value = line[2:16].strip(), line[16:]
            yield Row(label, value)


def tests() -> Iterator[Row]:
    """What ``python -m pytest -m gpu`` says."""
    said = run(["-m", "pytest", "-m", "gpu", "-q", "-n0", "tests/whole/gpu"], 200)
    yield Row("pytest -m gpu", said.splitlines()[-1].strip("= "))


def cores() -> Iterator[Row]:
    """Likelihoods by 1, 2, 4, ... ranks on the machine's cores."""
    print(run(["-m", "tests.bench.cores"], 200))
    yield Row("likelihoods by cores", "see above")


def call() -> Iterator[Row]:
    """A call of one rank beside PyTensor's own function in JAX mode."""
    import numpy as np
    import pytensor
    import pytensor.tensor as pt

    import synk
    from tests.bench.beside import interleave

    with synk.session(1, devices=[0]):
        import jax

        x = pt.fvector("x")
        plain = pytensor.function([x], x.sum(), mode="JAX", trust_input=True)
        f = synk.function([x], x.sum(), mode="JAX")
        rows = np.ones(10, "float32")
        times = interleave(
            [lambda: f(rows), lambda: np.array(jax.block_until_ready(plain(rows)))], 301
        )
        mine, plain_jax = (f"{seconds * 1e6:.0f}" for seconds in times)
        beside, ratio = f"{plain_jax} PyTensor in JAX mode", times[0] / times[1]
        yield Row("call of x.sum()", f"{mine} us", beside, f"{ratio:.2f}")


def rows() -> Iterator[Row]:
    """Rows from shared memory to the GPU, beside a copy from pinned memory."""
    import numpy as np

    import synk
    from synk.memory.partition import select
    from synk.memory.to_device import DeviceTaker
    from synk.ranks.session import SESSION
    from tests.bench.beside import interleave

    with synk.session(1, devices=[0]):
        import torch

        data = synk.data(np.ones((4 * IMAGES[0], *IMAGES[1:]), "float32"))
        shuffled = np.random.default_rng(0).permutation(len(data))[: IMAGES[0]]
        pinned = torch.ones(IMAGES).pin_memory()
        there = torch.empty(IMAGES, device="cuda")

        def copy() -> None:
            there.copy_(pinned, non_blocking=True)
            torch.cuda.synchronize()

        nbytes = int(np.prod(IMAGES)) * 4
        own = np.ones((2 * IMAGES[0], *IMAGES[1:]), "float32")
        # The same bytes in rows of 3 kB, which are gathered first.
        short = synk.data(data.data.reshape(-1, 3, 16, 16))
        few = np.random.default_rng(0).permutation(len(short))[: len(short) // 4]
        to_device = SESSION.context.to_device
        assert to_device is not None
        taker = DeviceTaker(to_device)

        def take(array: np.ndarray, batch: Any) -> None:
            taker.take(array, select(batch, len(array))).wait()

        cases: dict[str, tuple[np.ndarray, Any]] = {
            "64 images, adjacent": (data.data, slice(64, 128)),
            "64 images, shuffled": (data.data, shuffled),
            "12544 rows, shuffled": (short.data, few),
            "64 images of the user's": (own, slice(9, 73)),
        }
        for what, case in cases.items():
            mine, plain = interleave([partial(take, *case), copy], 51)
            speed, beside = (f"{nbytes / took / 1e9:.1f}" for took in (mine, plain))
            beside += " pinned cudaMemcpy"
            yield Row(what, f"{speed} GB/s", beside, f"{plain / mine:.2f}")


def resnet(batch: int, precision: str) -> Iterator[Row]:
    """ResNet-50's training step, beside JAX's by hand; see `by_torch`."""
    script = ["tests/bench/resnet.py", "--batch", str(batch), "--image-size", "224"]
    text = run([*script, "--turns", "21", "--precision", precision], 400)
    found = {
        name: float(ms) for name, ms in re.findall(r"^(\w+) +([\d.]+)", text, re.M)
    }
    speed = {name: 1e3 * batch / found[name] for name in ("synk", "JAX")}
    yield Row(
        f"ResNet-50, {precision}, batch {batch}",
        f"{speed['synk']:.0f} images/s",
        f"{speed['JAX']:.0f} in JAX by hand",
        f"{speed['synk'] / speed['JAX']:.3f}",
    )


def by_torch(batch: int, precision: str) -> Iterator[Row]:
    """ResNet-50's training step in torch: channels last, compiled."""
    import torch
    import torchvision

    is_short = precision == "bfloat16"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    network = torchvision.models.resnet50().cuda()
    network = torch.compile(network.to(memory_format=torch.channels_last))
    options = {"lr": 0.1, "momentum": 0.9, "nesterov": True}
    optimiser = torch.optim.SGD(network.parameters(), **options)
    x = torch.rand((batch, *IMAGES[1:]), device="cuda")
    x = x.to(memory_format=torch.channels_last)
    y = torch.randint(1000, (batch,), device="cuda")

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=is_short):
            loss = torch.nn.functional.cross_entropy(network(x), y)
        loss.backward()
        optimiser.step()
        torch.cuda.synchronize()

    for _ in range(5):
        step()
    start = time.perf_counter()
    for _ in range(20):
        step()
    speed = 20 * batch / (time.perf_counter() - start)
    yield Row(f"torch, {precision}, batch {batch}", f"{speed:.0f} images/s")


SECTIONS: dict[str, tuple[Callable[[], Iterator[Row]], float]] = {
    "machine": (machine, 120),
    "tests": (tests, 200),
    "call": (call, 200),
    "rows": (rows, 200),
    **{
        f"resnet{batch}-{precision}": (partial(resnet, batch, precision), 420)
        for batch in (64, 256)
        for precision in PRECISIONS
    },
    "cores": (cores, 200),
    **{
        f"torch{batch}-{precision}": (partial(by_torch, batch, precision), 200)
        for batch in (64, 256)
        for precision in PRECISIONS
    },
}
"""By name: what runs, and for how many seconds at most; first what matters most."""


def section(name: str, left: float) -> list[Row]:
    """Run a section in a process of its own, for which so many seconds are left."""
    if left < 10:
        return [Row(name, "not run: no time left")]
    print(f"-- {name}", flush=True)
    start = time.perf_counter()
    command = [sys.executable, __file__, "--section", name]
    limit = min(left, SECTIONS[name][1])
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        said, _ = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # what it has started, too
        child.wait()
        return [Row(name, f"failed: took more than {limit:.0f} s")]
    finally:
        print(f"   {time.perf_counter() - start:.0f} s", flush=True)
    if child.returncode:
        return [Row(name, f"failed: exit {child.returncode}, see above")]
    *printed, figures = said.splitlines()
    print(*printed, sep="\n")
    return [Row(*row) for row in json.loads(figures)]


def main() -> None:
    """Run what was asked for, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--minutes", type=float, default=6)
    parser.add_argument("--section", choices=SECTIONS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    # What sections and their tests start finds synk here, installed or not.
    path = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    if options.section:
        work, _ = SECTIONS[options.section]
        print(json.dumps(list(work())))
        return
    table, end = [], time.monotonic() + 60 * options.minutes
    for name in options.only:
        found = section(name, end - time.monotonic())
        show(found)  # as it comes, too: who waits for minutes may be cut off
        table += found
    print()
    show([Row("", "", "beside", "ratio"), *table])


def show(table: list[Row]) -> None:
    for row in table:
        line = f"{row.what:40}{row.value:18}{row.beside:28}{row.ratio:>7}"
        print(line.rstrip(), flush=True)


if __name__ == "__main__":
    main()
