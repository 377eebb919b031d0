"""Whether plans are right: ``SYNK_PLANS=$(mktemp) python -m tests.bench.choice``.

Each graph is called as it comes, and by all plans that `synk.tune` knows, in turns. The
ratio is that of the plan by the rules to the fastest one.
"""

import re
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.traversal import ancestors

import synk

N = 200_000
X, XF, V, K = pt.dmatrix("X"), pt.fmatrix("XF"), pt.dvector("v"), pt.lvector("k")
W, WF, SEQ, IMAGES = pt.dvector("w"), pt.fvector("wf"), pt.ftensor3(), pt.ftensor4()
L, GRID = X @ W[:5], W[:40].reshape((5, 8))


def layers(x, w):
    hidden = pt.tanh(x @ w[:80].reshape((5, 16)))
    return ((hidden @ w[80:160].reshape((16, 5)) - x) ** 2).sum()


T, LX = pt.log1p(V**2), pt.exp(L)
CUTS = pt.concatenate([[-20.0], pt.cumsum(pt.exp(W[:4])), [20.0]])
GAPS = -0.5 * (V[:, None] - W[:4]) ** 2
EM = pt.special.softmax(GAPS, axis=1)
STATES = pytensor.scan(
    lambda x, h: pt.tanh(x @ WF[:64].reshape((8, 8)) + h),
    SEQ.dimshuffle(1, 0, 2),
    pt.zeros((SEQ.shape[0], 8), "float32"),
    return_updates=False,
)
LOGITS, FAR = pt.special.log_softmax(X @ GRID, 1), (X[:, :, None] - GRID[None]) ** 2
GRAPHS = {
    "logistic": (K * L - pt.softplus(L)).sum(),
    "logistic, float32": (XF @ WF[:5] - pt.softplus(XF @ WF[:5])).sum(),
    "Poisson": (K * L - LX - pt.gammaln(K + 1)).sum(),
    "negative binomial": (pt.gammaln(K + LX) - pt.gammaln(LX) - LX * 0.7).sum(),
    "Student": (-2.5 * pt.log1p((V - L) ** 2 / 4)).sum(),
    "normal": (-0.5 * ((V - L) / pt.exp(W[5])) ** 2 - W[5]).sum(),
    "mixture of 4": pt.logsumexp(GAPS, axis=1).sum(),
    "multinomial logit": LOGITS[pt.arange(K.shape[0]), K].sum(),
    "distances to 8 centres": FAR.sum(axis=1).min(axis=1).sum(),
    "hidden layer": layers(X, W),
    "hidden layer, float32": layers(XF, WF),
    "hierarchical": (-0.5 * (V - W[40:340][K * 60] * V) ** 2).sum(),
    "survival": pt.switch(K > 1, W[0] - T * pt.exp(W[0]), -T * pt.exp(W[0])).sum(),
    "ordinal": pt.log(pt.sigmoid(CUTS[K + 1] - L) - pt.sigmoid(CUTS[K] - L)).sum(),
    "EM of a mixture": [EM.sum(axis=0), (EM * V[:, None]).sum(axis=0)],
    "PCA": [X.T @ X, X.sum(axis=0)],
    "linear sums": [V.sum(), (V * V).sum(), (V * K).sum()],
    "recurrent": pt.sqr(STATES[-1]).sum(),
    "convolution": pt.sqr(synk.nn.conv2d(IMAGES, WF[:72].reshape((8, 1, 3, 3)))).sum(),
    "variance": [V.var(), X.mean(axis=0)],
}


def main() -> None:
    shapes = {X: (N, 5), XF: (N, 5), V: N, W: 400, WF: 400}
    shapes |= {SEQ: (2000, 30, 8), IMAGES: (512, 1, 28, 28)}
    rng, values = np.random.default_rng(1), {K: np.arange(N) * 7 % 5}
    for var, shape in shapes.items():
        values[var] = (rng.normal(size=shape) / 3).astype(var.type.dtype)
    with synk.session(2):
        given = {var: synk.data(value, var) for var, value in values.items()}
        for name in sys.argv[1:] or GRAPHS:
            graph = GRAPHS[name]
            wants = graph if isinstance(graph, list) else [graph]
            used = [var for var in values if var in ancestors(wants)]
            shared = [var for var in used if var in (W, WF)]
            if not isinstance(graph, list):
                wants = [graph, *pt.grad(graph, shared)]
            rows = [var for var in used if var not in shared]
            f = synk.function(rows, wants, bcast_inputs=shared)
            args = [given[var] for var in rows] + [values[var] for var in shared]
            f(*args)
            plan = re.split(r"[;:]", f.explain().to_dict()["plan"])[0]
            table = {row.name: row.milliseconds for row in synk.tune(f, *args)}
            best = min(ms for ms in table.values() if ms is not None)
            mine = table.get(plan)
            print(f"{name:24} {plan:46} {mine} ms {mine and mine / best}", flush=True)


if __name__ == "__main__":
    main()
