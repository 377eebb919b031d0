"""What `synk.function` does: reduce ops, batches, slices, subsets and updates.

Run it with ``python demos/functions.py --ranks 3``. Every result is compared with what
plain PyTensor computes in this process alone.
"""

import argparse

import numpy as np
import pytensor
import pytensor.tensor as pt

import synk

rng = np.random.default_rng(1)
X = rng.normal(size=(20, 3))
x = pt.dmatrix("x")
weights = pytensor.shared(rng.normal(size=3), name="weights")
score = x @ weights


def reduce_ops(n: int) -> None:
    """Let each output say how the values of the ranks become one."""
    outputs = [
        (score.mean(), "avg"),  # weighted by the rows of each rank
        (score.sum(), "sum"),
        (score.prod(), "prod"),
        (score.min(), "min"),
        (score.max(), "max"),
        (score, "gather"),  # one rank's rows after the other's: the order of x
        (weights * 2, None),  # no reduction: rank 0's own value
        x.mean(axis=0),  # no op: "avg", as it is shown to be a mean over the rows
        x.std(axis=0),  # none fits: the ranks combine what it is made of
    ]
    f = synk.function([x], outputs, name="reduce_ops")
    plain = pytensor.function(
        [x], [o[0] if isinstance(o, tuple) else o for o in outputs]
    )
    print(f"1. reduce ops: {f.output_modes}")
    for result, expected in zip(f(X), plain(X), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-12)
    # Rows are cut into contiguous parts, the larger ones first.
    part = -(-len(X) // n)
    own = synk.function([x], (score.mean(), None))(X)
    np.testing.assert_allclose(own, plain(X[:part])[0], rtol=1e-12)
    print(f"   mean score {plain(X)[0]:+.4f}, and {own:+.4f} of rank 0's {part} rows")


def batches() -> None:
    """Choose the rows of the inputs with `batch`, which is applied before the cut."""
    shift = pt.dscalar("shift")
    rows = score + shift
    outputs = [(rows, "gather"), (rows.mean(), "avg")]
    f = synk.function([x], outputs, bcast_inputs=[shift], name="batches")
    plain = pytensor.function([x, shift], [rows, rows.mean()])
    mask = X[:, 0] > 0
    kinds = {
        "the first 7 rows": (7, slice(7)),
        "a slice": (slice(3, 17), slice(3, 17)),
        "a slice with a step": (slice(18, 1, -4), slice(18, 1, -4)),
        "shuffled indices": (order := rng.permutation(len(X))[:11], order),
        "repeated and negative indices": ([5, 0, 5, -1], [5, 0, 5, -1]),
        "a mask": (mask, mask),
        "a single row": ([13], [13]),  # the other ranks have nothing to do
    }
    print("2. batches")
    for kind, (batch, index) in kinds.items():
        gathered, mean = f(X, shift=0.5, batch=batch)
        expected_rows, expected_mean = plain(X[index], 0.5)
        np.testing.assert_allclose(gathered, expected_rows, rtol=1e-12)
        np.testing.assert_allclose(mean, expected_mean, rtol=1e-12)
        print(f"   {kind}: {len(gathered)} rows, mean {mean:+.4f}")


def slices() -> None:
    """Compute in several smaller steps: less memory, and the same numbers."""
    loss = (score**2).mean()
    gradient = pytensor.shared(np.zeros(3), name="gradient")
    calls = pytensor.shared(0, name="calls")
    updates = {gradient: pt.grad(loss, weights), calls: calls + 1}
    f = synk.function([x], [loss, (score.max(), "max")], updates=updates, name="slices")
    plain = pytensor.function([x], [loss, score.max(), pt.grad(loss, weights)])
    expected = plain(X)
    for num_slices in (1, 3, 50):
        result = f(X, num_slices=num_slices)
        result.append(gradient.get_value())
        for value, of_all_rows in zip(result, expected, strict=True):
            np.testing.assert_allclose(value, of_all_rows, rtol=1e-12)
    assert calls.get_value() == 3  # updated once a call, however many slices
    print(f"3. slices: loss {result[0]:.4f} in 1, 3 and 50 of them")


def subsets() -> None:
    """Compute some of the outputs only, in the order asked for."""
    outputs = [score.mean(), (score.sum(), "sum"), (score, "gather")]
    f = synk.function([x], outputs, name="subsets")
    mean, total, rows = f(X)
    again = f(X, output_subset=[2, 0])
    np.testing.assert_allclose(again[0], rows, rtol=1e-12)
    np.testing.assert_allclose(again[1], mean, rtol=1e-12)
    (alone,) = f(X, output_subset=[-2])
    np.testing.assert_allclose(alone, total, rtol=1e-12)
    # The whole call itself equals the plain function, which rank 0 can run too.
    plain = pytensor.function([x], [score.mean(), score.sum(), score])
    for result, serial, expected in zip(f(X), f.as_theano(X), plain(X), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-12)
        np.testing.assert_allclose(serial, expected, rtol=1e-12)
    print("4. subsets: outputs 2 and 0, then 1, equal those of a whole call")


def updates(n: int) -> None:
    """Update shared variables, of which every rank has a copy of its own."""
    expected = X.sum(axis=0) + X[5:].sum(axis=0)
    print("5. updates: every rank counted 2 steps")
    for local in False, True:
        seen = pytensor.shared(np.zeros(3), name="seen")
        steps = pytensor.shared(0, name="steps")
        counts = {seen: seen + x.sum(axis=0), steps: steps + 1}
        f = synk.function([x], updates=counts, local=local)
        f(X)
        f(X, batch=slice(5, None))
        np.testing.assert_array_equal(synk.gather(steps), np.full(n, 2))
        by_rank = synk.gather(seen)  # a row for each rank
        if not local:
            np.testing.assert_allclose(by_rank, np.tile(expected, (n, 1)), rtol=1e-12)
    np.testing.assert_allclose(by_rank.sum(axis=0), expected, rtol=1e-12)
    print("   and added up all rows; with local=True, its own rows:")
    for rank, own in enumerate(by_rank):
        print(f"   rank {rank}: {np.round(own, 3)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, help="default: all usable cores")
    with synk.session(parser.parse_args().ranks) as n:
        print(f"{n} ranks, {len(X)} rows")
        reduce_ops(n)
        batches()
        slices()
        subsets()
        updates(n)
    print("functions: every result equals plain PyTensor's")


if __name__ == "__main__":
    main()
