"""The same script gives the same bits in every run: cold, warm, busy, and after others.

Each script is run twice: with nothing compiled on disk; and with that there, beside two
processes that keep all cores busy by turns, after other functions of the script have
been called. What it has computed is printed as one number for each part. Where that
does not depend on ranks either, the second run has another number of them, and chains
are at once or one after the other.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import await_end, children, script_environment, wait_until

import synk
from synk.ranks.groups import Leaders, RankGroups

SIDE_BY_SIDE = "synk: 2 chains at once, each on 1 rank"

COMMON = """
import hashlib, sys, warnings
import numpy as np, pytensor, pytensor.tensor as pt, synk
from scipy.optimize import minimize

def say(what, *arrays):
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    print(what, digest.hexdigest()[:16])

X, y, w = pt.dmatrix("X"), pt.dvector("y"), pt.dvector("w")
rng = np.random.default_rng(0)
A = rng.normal(size=(40_000, 20))
B = rng.poisson(np.exp(A @ np.linspace(-0.2, 0.2, 20))).astype(float)

def likelihood():
    eta = X @ w
    loss = (pt.exp(eta) - y * eta + pt.gammaln(y + 1)).mean()
    return synk.function([X, y], [loss, pt.grad(loss, w)], bcast_inputs=[w])

RANKS = int(sys.argv[1])
if "others" in sys.argv:
    with synk.session(2):
        for rows in (100, 40_000):
            likelihood()(A[:rows], B[:rows], np.zeros(20))
"""

TRAINING = (
    COMMON
    + """
def fit():
    f = likelihood()
    data = synk.data(A), synk.data(B)
    found = minimize(lambda v: f(*data, v), np.zeros(20), jac=True, method="L-BFGS-B")
    say("L-BFGS", found.x, found.fun)

def train(what, x, out, params, images):
    k = pt.lvector("k")
    loss = -pt.special.log_softmax(out, axis=1)[pt.arange(k.shape[0]), k].mean()
    updates = synk.updates.adam(loss, params, 0.01)
    f = synk.function([x, k], loss, updates=updates)
    labels = rng.integers(0, 10, len(images))
    losses = [f(images, labels, batch=slice(i, i + 64)) for i in range(0, 512, 64)]
    losses += list(f.run([slice(i, i + 64) for i in range(0, 512, 64)], images, labels))
    say(what, losses, *(p.get_value() for p in params))

def shared(*shape):
    values = rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]) + 1)
    return pytensor.shared(values.astype("float32"))

with synk.session(RANKS):
    fit()
    x, params = pt.fmatrix("x"), [shared(100, 64), shared(64, 10)]
    images = rng.normal(size=(512, 100)).astype("float32")
    train("MLP", x, pt.tanh(x @ params[0]) @ params[1], params, images)
    x, params = pt.ftensor4("x"), [shared(4, 1, 3, 3), shared(4 * 36, 10)]
    h = synk.nn.pool_2d(synk.nn.conv2d(x, params[0]), (2, 2), ignore_border=True)
    images = rng.normal(size=(512, 1, 14, 14)).astype("float32")
    train("CNN", x, pt.maximum(h, 0).flatten(2) @ params[1], params, images)
"""
)

SAMPLING = (
    COMMON
    + """
import logging, pymc as pm, synk.pymc
warnings.simplefilter("ignore")
logging.getLogger("pymc").setLevel(logging.ERROR)
with pm.Model() as model:
    b = pm.Normal("b", 0, 1, shape=20)
    pm.Poisson("y", pm.math.exp(A @ b), observed=B)
how = dict(tune=9, draws=6, random_seed=1, chains=2, cores=1 + RANKS % 2)
how |= dict(progressbar=False, compute_convergence_checks=False)
with synk.session(RANKS), synk.pymc.parallel(model):
    for sampler in ("pymc", "nutpie"):
        found = pm.sample(nuts_sampler=sampler, **how)
        say(sampler, found.posterior["b"].values)
"""
)


@contextlib.contextmanager
def busy():
    """Keep two cores busy for half of the time, in a block."""
    script = "import time\nwhile True: sum(range(10**6)), time.sleep(0.02)"
    others = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(2)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def two_runs(script: str, folder: Path, ranks: tuple[int, int]) -> list[str]:
    """Return what the two runs have printed."""
    path = folder / "script.py"
    path.write_text(script)
    environment = script_environment() | {
        "SYNK_ENGINE": "auto",
        "PYTENSOR_FLAGS": f"base_compiledir={folder / 'compiled'}",
        "XDG_CACHE_HOME": str(folder / "cache"),
    }

    def run(*words: Any) -> str:
        command = [sys.executable, str(path), *map(str, words)]
        options = {"capture_output": True, "text": True, "timeout": 200}
        made = subprocess.run(command, env=environment, check=False, **options)
        assert made.returncode == 0, made.stderr
        return made.stdout

    cold = run(ranks[0])
    with busy():
        return [cold, run(ranks[1], "others")]


@pytest.mark.parametrize(
    ("script", "parts", "sizes", "needs"),
    [(TRAINING, 3, (2, 2), ["jax"]), (SAMPLING, 2, (1, 2), ["pymc", "nutpie"])],
    ids=["training", "sampling"],
)
def test_a_script_gives_the_same_bits_in_every_run(
    script, parts, sizes, needs, tmp_path
):
    for package in needs:
        pytest.importorskip(package, reason=f"{package} is missing")
    runs = [run.splitlines() for run in two_runs(script, tmp_path, sizes)]
    if script is SAMPLING and len(os.sched_getaffinity(0)) > 1:
        layouts = [sum(line == SIDE_BY_SIDE for line in run) for run in runs]
        assert layouts == [2, 0]
    first, other = [[line for line in run if "synk" not in line] for run in runs]
    assert len(first) == parts
    assert first == other


def test_a_rank_that_dies_breaks_no_other_group_and_changes_no_bit(monkeypatch):
    """Its own group has it again, and makes the call once more."""
    pm = pytest.importorskip("pymc", reason="pymc is missing")
    monkeypatch.setenv("SYNK_ENGINE", "auto")
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        logits = rng.normal(size=(20_000, 5)) @ pm.Normal("slopes", shape=5)
        pm.Bernoulli("y", logit_p=logits, observed=rng.random(20_000) < 0.4)
    density = synk.pymc.logp_dlogp(model)
    points = rng.normal(size=(100, 5)) / 10

    def walk(compute: Callable[[Any], Any]) -> list[bytes]:
        return [b"".join(v.tobytes() for v in compute(point)) for point in points]

    with synk.session(2), ThreadPoolExecutor(2) as threads:
        expected = walk(density)
        before = children(os.getpid())
        groups = density.groups = RankGroups(2, 2)
        leaders = Leaders(groups, density)
        both = [pid for pid in children(os.getpid()) if pid not in before]

        def ranks() -> list[list[int]]:
            zygotes = [children(leader) for leader in both]
            return [[r for z in each for r in children(z)] for each in zygotes]

        wait_until(lambda: list(map(len, ranks())) == [1, 1], 60, "two groups")
        ((killed,), other), walks = ranks(), []
        for _ in range(2):
            walks += [threads.submit(walk, leaders) for _ in range(2)]
            if len(walks) == 2:
                os.kill(killed, signal.SIGKILL)
        assert [each.result(timeout=120) for each in walks] == [expected] * 4
        assert ranks()[0] != [killed]
        assert ranks()[1] == other
        leaders.__exit__(None, None, None)
        await_end(both)
