"""What the collectives do: each rank has its own value of every shared variable.

Functions read and update a rank's own values; collectives move and combine them. Run
it with ``python demos/shared_variables.py --ranks 3``. Every result is compared with
numpy, or plain PyTensor.
"""

import argparse

import numpy as np
import pytensor
import pytensor.tensor as pt

import synk

rng = np.random.default_rng(3)


def equal(result, expected) -> None:
    np.testing.assert_allclose(result, expected, rtol=1e-12)


def one_value_for_all(n: int) -> None:
    """Give every rank the same value: `broadcast`."""
    w = pytensor.shared(np.zeros(4), name="w")
    equal(synk.gather(w), np.zeros((n, 4)))  # ranks start with the master's value
    w.set_value(np.ones(4))  # as in PyTensor; ranks get it when it is read
    equal(synk.gather(w), np.ones((n, 4)))
    value = rng.normal(size=4)
    synk.broadcast(w, value)
    equal(synk.gather(w), [value] * n)
    print(f"1. broadcast: all {n} ranks hold {np.round(value, 2)}; {synk.state(w)}")


def a_part_for_each(n: int) -> None:
    """Give every rank a part of the rows, and collect them: `scatter` and `gather`."""
    table = rng.normal(size=(10, 2))
    part = pytensor.shared(np.zeros((0, 2)), name="part", shape=(None, 2))
    synk.scatter(part, table)
    lengths = synk.get_lengths(part)
    assert sum(lengths) == 10
    assert max(lengths) - min(lengths) <= 1
    equal(synk.get_value(n - 1, part), table[10 - lengths[-1] :])
    equal(synk.gather(part, nd_up=0), table)  # joined; nd_up=1 stacks equal shapes
    synk.scatter(part, table, batch=[8, 1, 1])  # some rows; ranks may get none
    equal(synk.gather(part, nd_up=0), table[[8, 1, 1]])
    equal(synk.all_gather(part), table[[8, 1, 1]])  # now every rank has all of them
    assert synk.get_shapes(part) == [(3, 2)] * n
    print(f"2. scatter: 10 rows, {lengths} for each rank")


def one_rank(n: int) -> None:
    """Reach a single rank: `set_value` and `get_value`."""
    v = pytensor.shared(np.zeros(2), name="v")
    for rank in range(n):
        synk.set_value(rank, v, np.full(2, float(rank)))
    equal(synk.get_value(n - 1, v), [n - 1, n - 1])
    equal(v.get_value(), [0, 0])  # PyTensor's own way: rank 0's value
    print(f"3. set_value: the ranks hold {[float(row[0]) for row in synk.gather(v)]}")


def combining(n: int) -> None:
    """Combine values: `all_reduce` for all ranks, `reduce` for rank 0 alone."""
    values = rng.normal(size=(n, 3))
    v = pytensor.shared(np.zeros(3), name="v")
    numpy_ops = {
        "avg": np.mean,
        "sum": np.sum,
        "prod": np.prod,
        "min": np.min,
        "max": np.max,
    }
    for op, numpy_op in numpy_ops.items():
        for rank in range(n):
            synk.set_value(rank, v, values[rank])
        expected = numpy_op(values, axis=0)
        equal(synk.reduce(v, op, in_place=False), expected)  # returned only
        equal(synk.gather(v), values)
        synk.all_reduce(v, op)
        equal(synk.gather(v), [expected] * n)
    print(f"4. all_reduce: {', '.join(numpy_ops)} over {n} ranks")


def gradients() -> None:
    """Get the gradients of all rows, however uneven the parts.

    The op "avg" weighs a rank's value by the rows that it was computed from.
    """
    x, y = pt.dmatrix("x"), pt.dvector("y")
    w = pytensor.shared(rng.normal(size=5), name="w")
    b = pytensor.shared(0.0, name="b")
    loss = ((x @ w + b - y) ** 2).mean()
    grads = [var.zeros_like().eval() for var in (w, b)]
    grads = [pytensor.shared(value, name="gradient") for value in grads]
    formulas = pt.grad(loss, [w, b])
    updates = list(zip(grads, formulas, strict=True))
    f = synk.function([x, y], loss, updates=updates, local=True)
    plain = pytensor.function([x, y], [loss, *formulas])
    X, Y = rng.normal(size=(101, 5)), rng.normal(size=101)
    for rows in (101, 100, 1):
        result = f(X, Y, batch=rows)
        synk.all_reduce(grads)  # a list in one go
        for value, expected in zip(
            [result, *(g.get_value() for g in grads)],
            plain(X[:rows], Y[:rows]),
            strict=True,
        ):
            equal(value, expected)
    print("5. gradients of 101, 100 and 1 rows are those of the plain function")


def some_rows(n: int) -> None:
    """Use some of each rank's own rows: `sliceable_shareds` and `batch_s`.

    Data that never changes so stays with its rank; calls move nothing.
    """
    table = rng.normal(size=(12 * n, 2))
    part = pytensor.shared(np.zeros((0, 2)), name="part", shape=(None, 2))
    synk.scatter(part, table)
    own = table.reshape(n, 12, 2)  # own[rank]
    outputs = [(part.sum(axis=1), "gather"), part.mean()]
    f = synk.function([], outputs, sliceable_shareds=[part], name="some_rows")
    rows_by_rank = [rng.permutation(12)[: rank + 2] for rank in range(n)]
    for batch_s, chosen in [
        (None, list(own)),  # all rows
        (slice(2, 12, 3), [rows[2:12:3] for rows in own]),  # the same on every rank
        (rows_by_rank, [own[r][rows] for r, rows in enumerate(rows_by_rank)]),
    ]:
        sums, mean = f(batch_s=batch_s)
        equal(sums, np.concatenate(chosen).sum(axis=1))
        equal(mean, np.concatenate(chosen).mean())  # over rows, not over ranks
    print(f"6. sliceable_shareds: {[len(rows) for rows in chosen]} rows of 12 each")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, help="default: all usable cores")
    with synk.session(parser.parse_args().ranks) as n:
        print(f"{n} ranks")
        one_value_for_all(n)
        a_part_for_each(n)
        one_rank(n)
        combining(n)
        gradients()
        some_rows(n)
    print("shared_variables: every result equals numpy's and plain PyTensor's")


if __name__ == "__main__":
    main()
