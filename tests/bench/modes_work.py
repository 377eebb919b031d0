"""What `modes` measures, in processes of its own: one work, in one mode.

``python tests/bench/modes_work.py WORK MODE RANKS ROWS`` makes the first call, and then
as many as each line of its input says.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

import synk


def likelihood(mode: str, rows: int) -> Callable[[], Any]:
    """Return a call of a logistic log-likelihood and its gradient, in float64."""
    x, y, beta = pt.matrix("x"), pt.vector("y"), pt.vector("beta")
    eta = x @ beta
    cost = (pt.softplus(eta) - y * eta).sum()
    f = synk.function([x, y], [cost, pt.grad(cost, beta)], [beta], mode=mode)
    random = np.random.default_rng(0)
    X = synk.data(random.normal(size=(rows, 20)))
    Y = synk.data(random.integers(0, 2, rows).astype("float64"))
    point = random.normal(size=20) / 10
    return lambda: f(X, Y, point)[0]


def mlp(mode: str, rows: int) -> Callable[[], Any]:
    """Return a training step of 784-800-800-10, in float32."""
    x = pt.matrix("x", dtype="float32")
    values, params = x, []
    random = np.random.default_rng(0)
    for n, m in ((784, 800), (800, 800), (800, 10)):
        params.append(_weights(random, (n, m), n))
        values = values @ params[-1]
        if m != 10:
            values = synk.nn.relu(values)
    return _step(mode, x, values, params, random.normal(size=(rows, 784)))


def cnn(mode: str, rows: int) -> Callable[[], Any]:
    """Return a training step of a network like LeNet, in float32."""
    x = pt.tensor4("x", dtype="float32")
    values, params = x, []
    random = np.random.default_rng(0)
    for shape in ((16, 1, 5, 5), (32, 16, 5, 5)):
        params.append(_weights(random, shape, shape[1] * 25))
        values = synk.nn.conv2d(values, params[-1])
        values = synk.nn.pool_2d(synk.nn.relu(values), 2, ignore_border=True)
    params.append(_weights(random, (32 * 16, 10), 512))
    values = values.flatten(2) @ params[-1]
    return _step(mode, x, values, params, random.normal(size=(rows, 1, 28, 28)))


def _weights(random: Any, shape: tuple[int, ...], n: int) -> Any:
    return pytensor.shared((random.normal(size=shape) / n**0.5).astype("float32"))


def _step(mode: str, x: Any, values: Any, params: list, rows: Any) -> Callable:
    y = pt.lvector("y")
    loss = synk.nn.categorical_crossentropy(synk.nn.softmax(values), y).mean()
    rule = synk.updates.sgd(loss, params, learning_rate=np.float32(0.01))
    f = synk.function([x, y], loss, updates=rule, mode=mode)
    X = synk.data(rows.astype("float32"))
    Y = synk.data(np.arange(len(rows)) % 10)
    return lambda: f(X, Y)


def main(work: str, mode: str, ranks: int, rows: int) -> None:
    """Say how long the first call takes; then make as many calls as each line says."""
    synk.fork(ranks)
    call = WORKS[work](mode, rows)
    began, busy = time.perf_counter(), _cpu_seconds()
    value = float(call())
    first = time.perf_counter() - began, _cpu_seconds() - busy
    print(json.dumps({"first": first, "value": value}), flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        for _ in range(int(line)):
            call()
        print((time.perf_counter() - began) / int(line), flush=True)
    synk.close()


def _cpu_seconds() -> float:
    """Return the CPU time of this process, and of the children that have ended."""
    used = (
        resource.getrusage(who)
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


WORKS = {"likelihood": likelihood, "mlp": mlp, "cnn": cnn}

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
