"""The corpus of the state machine: what functions make of shared variables."""

from __future__ import annotations

import pytensor
import pytensor.tensor as pt
from state_graphs import RNG, TWINS, VARIABLES, AllRowsGuard, B, Graph, Guard, K, X, Y


def _graphs() -> list[Graph]:
    w, v, g, h = (VARIABLES[name] for name in "wvgh")
    total, mean, top, rate = (VARIABLES[n] for n in ("total", "mean", "top", "rate"))
    kept, table, single = (VARIABLES[name] for name in ("kept", "table", "single"))
    count, counts = VARIABLES["count"], VARIABLES["counts"]
    seen, flags = VARIABLES["seen"], VARIABLES["flags"]
    loss = ((X @ w - Y) ** 2).mean()
    gradient = pytensor.grad(loss, w)
    velocity = 0.5 * v - rate * gradient
    centred = Y - Y.mean()
    normal = (X - X.mean(axis=0)) / (X.std(axis=0) + 1)
    next_rng, noise = pt.random.normal(size=(3,), rng=RNG).owner.outputs
    new_w = 0.5 * w + X.mean(axis=0)
    guard, all_rows_guard = Guard(), AllRowsGuard()
    w_twin, total_twin, kept_twin = (TWINS[var] for var in (w, total, kept))
    plain = [
        Graph("add up", [X], [X.sum()], [(total, total + X.sum())]),
        Graph("add up more", [X, Y], [], [(total, total / 2 + (X.T @ Y).sum())]),
        Graph(
            "average", [X], [], [(mean, X.mean()), (v, X.mean(axis=0))], least_rows=1
        ),
        Graph("keep rows", [Y], [Y.max()], [(kept, Y * 10)], least_rows=1),
        Graph("keep a table", [X], [(X * w).sum()], [(table, X * w)]),
        Graph("keep flags", [Y], [], [(flags, pt.gt(Y, mean))]),
        Graph("highest", [Y], [top], [(top, pt.maximum(top, Y.max()))], least_rows=1),
        Graph("lowest", [X], [], [(g, X.min(axis=0))], least_rows=1),
        Graph("product", [Y], [], [(total, pt.tanh(Y).prod())]),
        Graph("count calls", [], [], [(count, count + 1)]),
        Graph("count rows", [X], [X.shape[0]], [(count, count + X.shape[0])]),
        Graph(
            "count labels",
            [K],
            [],
            [(counts, pt.inc_subtensor((counts // 2)[K], 1))],
            fails=True,
        ),
        Graph(
            "momentum",
            [X, Y],
            loss,
            [(v, velocity), (w, w + velocity)],
            least_rows=1,
        ),
        Graph("descend", [X, Y], [], [(w, w - rate * gradient)], least_rows=1),
        Graph("gradient", [X, Y], [], [(g, gradient)], least_rows=1),
        Graph("follow", [], [(g**2).sum()], [(w, w - rate * g)]),
        Graph("loss", [X, Y], [loss, X @ w], [], least_rows=1),
        Graph(
            "masks",
            [X, Y],
            [],
            [(w, w / 2 + (X * pt.gt(Y, Y.mean())[:, None]).sum(axis=0))],
            least_rows=1,
        ),
        Graph(
            "normalise",
            [X],
            [(normal**2).sum()],
            [(kept, normal.sum(axis=1)), (v, 0.9 * v + 0.1 * X.mean(axis=0))],
            least_rows=1,
        ),
        Graph("swap", [], [w.sum()], [(w, v), (v, w)]),
        Graph("swap and add", [X], [], [(g, h + X.sum(axis=0)), (h, g), (v, g - h)]),
        Graph("output and update", [X], [new_w, w.sum()], [(w, new_w)], least_rows=1),
        Graph("double", [], [], [(h, 2 * g - h / 4)]),
        Graph("rate decays", [], [rate], [(rate, 0.9 * rate + 0.001)]),
        Graph("copy", [], [], [(h, g), (mean, total)]),
        Graph("table to vector", [], [table.sum()], [(v, table.sum(axis=0))]),
        Graph(
            "rows of the table",
            [],
            [table.sum()],
            [(table, table / 2 + v), (total, total / 2 + table.sum())],
            keeps_rows=[table],
        ),
        Graph("times a vector", [], [table @ w], [(kept, table @ w)]),
        Graph(
            "meet kept rows",
            [Y],
            [(kept * Y).sum(), kept + Y],
            [(kept, kept / 2 + Y), (mean, kept.sum())],
            keeps_rows=[kept],
        ),
        Graph(
            "meet a table",
            [X],
            [],
            [(table, table / 2 + X), (flags, table[:, 0] > X[:, 0])],
            keeps_rows=[table],
        ),
        Graph(
            "kept rows and flags",
            [],
            [(kept * flags).sum()],
            [(kept, kept + flags), (flags, kept > 0)],
            keeps_rows=[kept, flags],
        ),
        Graph(
            "less their sum",
            [],
            [kept.sum()],
            [(kept, kept - 0.1 * kept.sum()), (count, kept.shape[0] + count)],
            keeps_rows=[kept],
        ),
        Graph("sort what is kept", [], [], [(kept, pt.sort(kept))]),
        Graph(
            "turn flags",
            [],
            [],
            [(flags, pt.invert(flags)), (seen, flags.any())],
            keeps_rows=[flags],
        ),
        Graph("write one", [], [w[1]], [(w, pt.set_subtensor(w[1], total))]),
        Graph("write some", [X], [], [(h, pt.inc_subtensor(h[:2], X.sum(0)[1:]))]),
        Graph("write and read", [], [g], [(g, pt.set_subtensor(g[0], h[0])), (h, g)]),
        Graph(
            "write what is counted",
            [K],
            [counts.sum()],
            [(counts, pt.set_subtensor(counts[0], K.shape[0])), (v, v / 2)],
        ),
        Graph(
            "guard what is written",
            [X, Y, K],
            [guard(Y, K)],
            [
                (g, pt.inc_subtensor(g[1], 1)),
                (w, pt.set_subtensor(w[:2], guard(X.sum(axis=0), K.max())[1:])),
                (v, g),
            ],
            fails=True,
            least_rows=1,
        ),
        Graph(
            "write a row",
            [],
            [w.sum()],
            [(w, v), (table, pt.set_subtensor(table[0], v)), (count, count + 1)],
        ),
        Graph("rows of one", [], [kept * 2], [(h, table.sum(axis=0))]),
        Graph("sorted", [Y], [], [(kept, pt.sort(Y))]),
        Graph("running sums", [Y], [pt.cumsum(Y)], [(kept, pt.cumsum(Y))]),
        Graph("broadcast", [X], [], [(w, B * w / 4 + B * X.sum(axis=0))], bcast=[B]),
        Graph("given", [], [B * 2], [(rate, abs(B) / 20)], bcast=[B]),
        Graph("singles", [X], [], [(single, single / 2 + X.sum(0).astype("float32"))]),
        Graph("seen", [Y], [], [(seen, seen & (Y > 1).any())]),
        Graph("any", [Y, K], [seen], [(seen, pt.any(Y[:, None] > K[:, None]))]),
        Graph("noise", [], [noise], [(w, w / 2 + noise), (RNG, next_rng)]),
        Graph(
            "noise and rows",
            [X],
            [(X * noise).sum()],
            [(g, X.sum(axis=0) * noise), (RNG, next_rng)],
        ),
        Graph(
            "look up",
            [Y, K],
            [(counts[K] * Y).sum()],
            [(count, count + 1), (kept, counts[K] * Y)],
            fails=True,
        ),
        Graph(
            "guard rows",
            [Y, K],
            [guard(Y, K)],
            [(count, count + 1), (w, w * 0.5 + 1), (RNG, next_rng), (h, noise)],
            fails=True,
        ),
        Graph(
            "guard after a mean",
            [Y, K],
            [guard(centred, K).max()],
            [(count, count + 1), (mean, Y.mean()), (kept, centred)],
            fails=True,
            least_rows=1,
        ),
        Graph(
            "guard what is common",
            [X, K],
            [],
            [(g, guard(X.sum(axis=0) + w, K.max())), (total, X.sum()), (v, g)],
            fails=True,
            least_rows=1,
        ),
        Graph(
            "guard all rows",
            [Y, K],
            [all_rows_guard(Y, K)],
            [(kept, all_rows_guard(Y, K)), (count, count + 1)],
            fails=True,
        ),
        Graph("read a twin", [X], [(X * w_twin).sum()], [(v, v / 2 + w_twin)]),
        Graph("update a twin", [X], [w], [(w_twin, w / 2 + X.sum(axis=0))]),
        Graph("add to a twin", [Y], [total], [(total, total_twin / 2 + Y.sum())]),
        Graph("write to a twin", [], [w], [(w_twin, pt.inc_subtensor(w_twin[0], 1))]),
        Graph("rows of a twin", [], [kept.sum()], [(kept_twin, kept / 2 + 1)]),
        Graph(
            "named sum",
            [X],
            [],
            [(g, g / 2 + X.sum(axis=0), "sum")],
            in_slices=False,  # each adds g / 2
        ),
        Graph(
            "named mean",
            [X],
            [X.sum()],
            [(v, 0.5 * v + X.mean(axis=0), "avg"), (h, v)],
            least_rows=1,
        ),
        Graph(
            "own gradient",
            [X, Y],
            [loss],
            [(g, X.mean(axis=0), "avg"), (count, count + 1)],
            least_rows=1,
        ),
    ]
    local = [
        Graph(
            "gradients",
            [X, Y],
            [(loss, "avg")],
            [(g, gradient), (count, count + 1)],
            least_rows=1,
        ),
        Graph("sums", [X], [(X.sum(), "sum")], [(g, X.sum(axis=0)), (total, X.sum())]),
        Graph("steps", [X, Y], [], [(w, w - rate * gradient)], least_rows=1),
        Graph("doubles", [], [], [(h, 2 * g)]),
        Graph("adds", [], [], [(h, g + w), (mean, total - mean / 2)]),
        Graph("totals", [Y], [], [(total, total / 2 + Y.sum()), (count, count + 1)]),
        Graph("rows", [Y], [(Y * 10, "gather")], [(kept, Y * 10), (flags, Y > 0)]),
        Graph("tables", [X], [], [(table, X * w)]),
        Graph("maxima", [Y], [(Y.max(), "max")], [(top, Y.max())], least_rows=1),
        Graph(
            "write rows",
            [X],
            [],
            [(g, X.sum(axis=0)), (table, pt.set_subtensor(table[0], w)), (w, w / 2)],
        ),
        Graph("writes", [X], [], [(g, pt.set_subtensor(g[0], X.sum()))]),
        Graph("increments", [], [], [(w, pt.inc_subtensor(w[2], 1)), (h, w)]),
        Graph(
            "guarded writes",
            [Y, K],
            [(guard(Y, K).sum(), "sum")],
            [(v, pt.inc_subtensor(v[1:], 1)), (g, v)],
            fails=True,
        ),
        Graph("flips", [], [], [(seen, pt.invert(seen)), (count, 2 - count)]),
        Graph(
            "labels", [K], [], [(counts, pt.inc_subtensor(counts[K], 1))], fails=True
        ),
        Graph(
            "guards",
            [Y, K],
            [(guard(Y, K).sum(), "sum")],
            [(mean, Y.mean()), (w, w * 0.5 + 1), (kept, Y)],
            fails=True,
            least_rows=1,
        ),
    ]
    for graph in local:
        graph.local, graph.name = True, f"local {graph.name}"
    return [*plain, *local]


GRAPHS = _graphs()


def _of_some_rows() -> list[Graph]:
    kept, table, flags = (VARIABLES[name] for name in ("kept", "table", "flags"))
    total, mean, v = (VARIABLES[name] for name in ("total", "mean", "v"))
    return [
        Graph(
            "mean of rows",
            [],
            [table.mean(axis=0)],
            [],
            sliceable=[table],
            least_rows=1,
        ),
        Graph(
            "halve rows",
            [],
            [kept.sum()],
            [(kept, kept / 2), (total, total / 2 + kept.sum())],
            keeps_rows=[kept],
            sliceable=[kept],
        ),
        Graph(
            "rows less their mean",
            [],
            [],
            [(table, table - table.mean(axis=0)), (v, table.mean(axis=0) + mean)],
            keeps_rows=[table],
            sliceable=[table],
            least_rows=1,
        ),
        Graph(
            "rows of both",
            [],
            [(kept * flags).sum()],
            [(flags, kept > mean), (kept, kept + flags)],
            keeps_rows=[kept, flags],
            sliceable=[kept, flags],
        ),
    ]


OF_SOME_ROWS = _of_some_rows()
"""Functions of which a call uses some rows of each rank's variables."""


def _of_own_noise() -> Graph:
    next_rng, noise = pt.random.normal(size=Y.shape, rng=RNG).owner.outputs
    w, count = VARIABLES["w"], VARIABLES["count"]
    return Graph(
        "guard noise of rows",
        [Y, K],
        [Guard()(Y + noise, K)],
        [(RNG, next_rng), (w, w / 2), (count, count + 1)],
        fails=True,
        least_rows=1,
    )


OF_OWN_NOISE = _of_own_noise()
"""Ranks draw other numbers than a serial run: to be called in order to fail."""
