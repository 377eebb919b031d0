"""The corpus of the state machine: what functions make of shared variables."""

import pytensor
import pytensor.tensor as pt
from state_graphs import RNG, TWINS, VARIABLES, AllRowsGuard, B, Graph, Guard, K, X, Y

w, v, g, h = (VARIABLES[name] for name in "wvgh")
total, mean, top, rate = (VARIABLES[n] for n in ("total", "mean", "top", "rate"))
kept, table, single = (VARIABLES[name] for name in ("kept", "table", "single"))
count, counts, seen, flags = (
    VARIABLES[name] for name in ("count", "counts", "seen", "flags")
)
w_twin, total_twin, kept_twin = (TWINS[var] for var in (w, total, kept))

loss = ((X @ w - Y) ** 2).mean()
gradient = pytensor.grad(loss, w)
velocity = 0.5 * v - rate * gradient
centred = Y - Y.mean()
normal = (X - X.mean(axis=0)) / (X.std(axis=0) + 1)
next_rng, noise = pt.random.normal(size=(3,), rng=RNG).owner.outputs
new_w = 0.5 * w + X.mean(axis=0)
guard, all_rows_guard = Guard(), AllRowsGuard()
guarded_w = pt.set_subtensor(w[:2], guard(X.sum(axis=0), K.max())[1:])

normalised = [(kept, normal.sum(axis=1)), (v, 0.9 * v + 0.1 * X.mean(axis=0))]
row_written = [(w, v), (table, pt.set_subtensor(table[0], v)), (count, count + 1)]
by_noise = [(g, X.sum(axis=0) * noise), (RNG, next_rng)]
PLAIN = [
    Graph("add up", [X], [X.sum()], [(total, total + X.sum())]),
    Graph("average", [X], [], [(mean, X.mean()), (v, X.mean(axis=0))]),
    Graph("keep rows", [Y], [Y.max()], [(kept, Y * 10)]),
    Graph("keep a table", [X], [(X * w).sum()], [(table, X * w)]),
    Graph("keep flags", [Y], [], [(flags, pt.gt(Y, mean))]),
    Graph("highest", [Y], [top], [(top, pt.maximum(top, Y.max()))]),
    Graph("lowest", [X], [], [(g, X.min(axis=0))]),
    Graph("product", [Y], [], [(total, pt.tanh(Y).prod())]),
    Graph("count calls", [], [], [(count, count + 1)]),
    Graph("count rows", [X], [X.shape[0]], [(count, count + X.shape[0])]),
    Graph("count labels", [K], [], [(counts, pt.inc_subtensor((counts // 2)[K], 1))]),
    Graph("momentum", [X, Y], [loss], [(v, velocity), (w, w + velocity)]),
    Graph("follow", [], [(g**2).sum()], [(w, w - rate * g)]),
    Graph("loss", [X, Y], [loss, X @ w], []),
    Graph("normalise", [X], [(normal**2).sum()], normalised),
    Graph("swap", [], [w.sum()], [(w, v), (v, w)]),
    Graph("swap and add", [X], [], [(g, h + X.sum(axis=0)), (h, g), (v, g - h)]),
    Graph("output and update", [X], [new_w, w.sum()], [(w, new_w)]),
    Graph("rate decays", [], [rate], [(rate, 0.9 * rate + 0.001)]),
    Graph("copy", [], [], [(h, g), (mean, total)]),
    Graph("table to vector", [], [table.sum()], [(v, table.sum(axis=0))]),
    Graph("times a vector", [], [table @ w], [(kept, table @ w)]),
    Graph("sort what is kept", [], [], [(kept, pt.sort(kept))]),
    Graph("write one", [], [w[1]], [(w, pt.set_subtensor(w[1], total))]),
    Graph("write some", [X], [], [(h, pt.inc_subtensor(h[:2], X.sum(0)[1:]))]),
    Graph("write and read", [], [g], [(g, pt.set_subtensor(g[0], h[0])), (h, g)]),
    Graph("write a row", [], [w.sum()], row_written),
    Graph("sorted", [Y], [], [(kept, pt.sort(Y))]),
    Graph("broadcast", [X], [], [(w, B * w / 4 + B * X.sum(axis=0))], [B]),
    Graph("given", [], [B * 2], [(rate, abs(B) / 20)], [B]),
    Graph("singles", [X], [], [(single, single / 2 + X.sum(0).astype("float32"))]),
    Graph("any", [Y, K], [seen], [(seen, pt.any(Y[:, None] > K[:, None]))]),
    Graph("noise", [], [noise], [(w, w / 2 + noise), (RNG, next_rng)]),
    Graph("noise and rows", [X], [(X * noise).sum()], by_noise),
    Graph("read a twin", [X], [(X * w_twin).sum()], [(v, v / 2 + w_twin)]),
    Graph("update a twin", [X], [w], [(w_twin, w / 2 + X.sum(axis=0))]),
    Graph("add to a twin", [Y], [total], [(total, total_twin / 2 + Y.sum())]),
    Graph("write to a twin", [], [w], [(w_twin, pt.inc_subtensor(w_twin[0], 1))]),
    Graph("rows of a twin", [], [kept.sum()], [(kept_twin, kept / 2 + 1)]),
]

of_table = [(table, table / 2 + v), (total, total / 2 + table.sum())]
met = [(kept, kept / 2 + Y), (mean, kept.sum())]
flagged = [(kept, kept + flags), (flags, kept > 0)]
less_sum = [(kept, kept - 0.1 * kept.sum()), (count, kept.shape[0] + count)]
KEEPING = [
    Graph("rows of the table", [], [table.sum()], of_table, keeps_rows=[table]),
    Graph("meet kept rows", [Y], [(kept * Y).sum(), kept + Y], met, keeps_rows=[kept]),
    Graph("and flags", [], [(kept * flags).sum()], flagged, keeps_rows=[kept, flags]),
    Graph("less their sum", [], [kept.sum()], less_sum, keeps_rows=[kept]),
]

written = [(g, pt.inc_subtensor(g[1], 1)), (w, guarded_w), (v, g)]
looked_up = [(count, count + 1), (kept, counts[K] * Y)]
noisy = [(count, count + 1), (w, w * 0.5 + 1), (RNG, next_rng), (h, noise)]
of_mean = [(count, count + 1), (mean, Y.mean()), (kept, centred)]
of_all_rows = [(kept, all_rows_guard(Y, K)), (count, count + 1)]
GUARDED = [
    Graph("guard what is written", [X, Y, K], [guard(Y, K)], written),
    Graph("look up", [Y, K], [(counts[K] * Y).sum()], looked_up),
    Graph("guard rows", [Y, K], [guard(Y, K)], noisy),
    Graph("guard after a mean", [Y, K], [guard(centred, K).max()], of_mean),
    Graph("guard all rows", [Y, K], [all_rows_guard(Y, K)], of_all_rows),
]

NAMED = [
    # In slices each would add g / 2.
    Graph("sum", [X], [], [(g, g / 2 + X.sum(axis=0), "sum")], in_slices=False),
    Graph("mean", [X], [X.sum()], [(v, 0.5 * v + X.mean(axis=0), "avg"), (h, v)]),
]

guarded_sum = (guard(Y, K).sum(), "sum")
rows_written = [(g, X.sum(axis=0)), (table, pt.set_subtensor(table[0], w)), (w, w / 2)]
LOCAL = [
    Graph("gradients", [X, Y], [(loss, "avg")], [(g, gradient), (count, count + 1)]),
    Graph("sums", [X], [(X.sum(), "sum")], [(g, X.sum(axis=0)), (total, X.sum())]),
    Graph("steps", [X, Y], [], [(w, w - rate * gradient)]),
    Graph("doubles", [], [], [(h, 2 * g)]),
    Graph("adds", [], [], [(h, g + w), (mean, total - mean / 2)]),
    Graph("rows", [Y], [(Y * 10, "gather")], [(kept, Y * 10), (flags, Y > 0)]),
    Graph("maxima", [Y], [(Y.max(), "max")], [(top, Y.max())]),
    Graph("write rows", [X], [], rows_written),
    Graph("increments", [], [], [(w, pt.inc_subtensor(w[2], 1)), (h, w)]),
    Graph("writes", [Y, K], [guarded_sum], [(v, pt.inc_subtensor(v[1:], 1)), (g, v)]),
    Graph("flips", [], [], [(seen, pt.invert(seen)), (count, 2 - count)]),
    Graph("labels", [K], [], [(counts, pt.inc_subtensor(counts[K], 1))]),
    Graph("guards", [Y, K], [guarded_sum], [(mean, Y.mean()), (w, w / 2), (kept, Y)]),
]
for graph in LOCAL:
    graph.local = True

GRAPHS = [*PLAIN, *KEEPING, *GUARDED, *NAMED, *LOCAL]

halves = [(kept, kept / 2), (total, total / 2 + kept.sum())]
less_mean = [(table, table - table.mean(axis=0)), (v, table.mean(axis=0) + mean)]
of_both = [(flags, kept > mean), (kept, kept + flags)]
OF_SOME_ROWS = [
    Graph("mean of rows", [], [table.mean(axis=0)], []),
    Graph("halve rows", [], [kept.sum()], halves, keeps_rows=[kept]),
    Graph("rows less their mean", [], [], less_mean, keeps_rows=[table]),
    Graph("of both", [], [(kept * flags).sum()], of_both, keeps_rows=[kept, flags]),
]
for graph in OF_SOME_ROWS:
    graph.sliceable = graph.keeps_rows or [table]
"""Functions of which a call uses some rows of each rank's variables."""

rng_of_rows, noise_of_rows = pt.random.normal(size=Y.shape, rng=RNG).owner.outputs
own_noise = [(RNG, rng_of_rows), (w, w / 2), (count, count + 1)]
OF_OWN_NOISE = Graph("own noise", [Y, K], [guard(Y + noise_of_rows, K)], own_noise)
"""Ranks draw other numbers than a serial run: to be called in order to fail."""
