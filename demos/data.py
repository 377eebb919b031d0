"""What `synk.data` does: arrays in shared memory, for inputs that are used again.

A call copies numpy inputs to shared memory each time; a `Data` lies there already, and
every rank takes its rows from it. Run it with ``python demos/data.py --ranks 3``.
"""

import argparse

import numpy as np
import pytensor
import pytensor.tensor as pt

import synk

rng = np.random.default_rng(2)
x, y = pt.matrix("x", dtype="float32"), pt.vector("y", dtype="int64")


def making() -> None:
    """Make a Data: its dtype and number of dimensions are fixed then."""
    table = rng.normal(size=(6, 3))
    same = synk.data(table)
    assert (same.dtype, same.shape) == (table.dtype, table.shape)
    zeros = synk.data(shape=(2, 4), dtype="int16")
    np.testing.assert_array_equal(zeros, np.zeros((2, 4), "int16"))
    # Values are cast where nothing is lost. float64 to float32 would lose digits.
    labels = synk.data([1, 2, 3], var=y)  # of the type that the variable has
    assert labels.dtype == "int64"
    try:
        synk.data(table, var=x)
    except TypeError as error:
        print(f"1. making: {str(error).split(';')[0]}")
    else:
        raise AssertionError("digits were lost without a word")
    cast = synk.data(table, var=x, force_cast=True)
    np.testing.assert_array_equal(cast, table.astype("float32"))
    print(f"   {same}, {zeros}, {labels}, {cast}")


def indexing() -> None:
    """Read and write with `[]`, as with a numpy array."""
    twin = np.arange(24.0).reshape(6, 4)
    table = synk.data(twin)
    for array in (table, twin):
        array[1] = -1
        array[::2, 1] *= 10
        array[[0, 5], [2, 3]] = 7
        array[array[:] > 20] = 20
    np.testing.assert_array_equal(table, twin)
    np.testing.assert_array_equal(table[2:5, ::-1], twin[2:5, ::-1])
    np.testing.assert_array_equal(table[[4, 0, -1]], twin[[4, 0, -1]])
    assert len(table) == len(twin)
    print(f"2. indexing: same as numpy, sum {table[:].sum()}")


def growing() -> None:
    """Change the length: rows that stay are kept, and new ones hold zeros."""
    table = synk.data(np.ones((300, 2)))
    table.set_length(1000, oversize=4)  # and room for four times as much
    assert table.shape == (1000, 2)
    np.testing.assert_array_equal(table[:300], 1)
    np.testing.assert_array_equal(table[300:], 0)
    room = table.alloc_size
    assert room >= 4 * table.size
    table.set_length(4000)  # fits: nothing is allocated or copied
    assert (table.shape, table.alloc_size) == ((4000, 2), room)
    table.set_value([[7, 8, 9]])  # another value, of any shape
    np.testing.assert_array_equal(table, [[7, 8, 9]])
    print(f"3. growing: {table}, with memory for {table.alloc_size} elements")
    table.free_memory()
    assert table.alloc_size == 0


def as_inputs() -> None:
    """Use Data and arrays together: there is one batch, and one cut, for all inputs."""
    right = pt.eq(pt.argmax(x, axis=1), y)
    outputs = [(right.sum(), "sum"), (right, "gather")]
    count = synk.function([x, y], outputs, name="count")
    plain = pytensor.function([x, y], [right.sum(), right])
    scores = rng.normal(size=(1000, 5)).astype("float32")
    labels = rng.integers(0, 5, 1000)
    X, Y = count.build_inputs(scores, labels)  # Data of the inputs' types
    for rows in np.array_split(rng.permutation(1000), 7):  # shuffled, of two lengths
        expected = plain(scores[rows], labels[rows])
        for result in (count(X, Y, batch=rows), count(x=X, y=labels, batch=rows)):
            np.testing.assert_array_equal(result[0], expected[0])
            np.testing.assert_array_equal(result[1], expected[1])
    before, _ = count(X, Y)
    assert before == plain(scores, labels)[0]
    Y[:] = scores.argmax(axis=1)  # in place: the next call sees it
    after, _ = count(X, Y)
    assert after == 1000
    print(f"4. as inputs: {before} of 1000 right, then {after}")


def minibatch() -> None:
    """Use data bigger than memory: a window holds the rows of one batch at a time."""
    total = synk.function([x, y], (x.sum(axis=1) * y, "gather"), name="total")
    plain = pytensor.function([x, y], x.sum(axis=1) * y)
    table = rng.normal(size=(1000, 3)).astype("float32")  # a file, in earnest
    labels = rng.integers(0, 5, 1000)
    Y = synk.data(labels, var=y)  # the small part lies in memory as a whole
    window = synk.data(var=x, minibatch=True)
    for low in range(0, 1000, 300):
        rows = slice(low, low + 300)  # counted in the whole table
        window.set_value(table[rows])  # row 0 stands for the lowest of them
        np.testing.assert_allclose(
            total(window, Y, batch=rows), plain(table[rows], labels[rows]), rtol=1e-6
        )
    print("5. minibatch: 1000 rows through a window of 300")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, help="default: all usable cores")
    with synk.session(parser.parse_args().ranks) as n:
        print(f"{n} ranks")
        making()
        indexing()
        growing()
        as_inputs()
        minibatch()
    print("data: every result equals numpy's and plain PyTensor's")


if __name__ == "__main__":
    main()
