"""Functions of scripts that know nothing of synk, run by ranks."""

import importlib
import textwrap

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import run_python
from places import DOCS

import synk


@pytest.fixture
def parallel():
    """Have all functions that have rows run on three ranks."""
    with (
        pytensor.config.change_flags(**CHEAP),
        synk.parallel_functions(3, every=True) as made,
    ):
        yield made
    synk.close()


CHEAP = {"mode": "FAST_COMPILE", "floatX": "float64", "cxx": ""}


# -- what is scattered


def test_arguments_with_as_many_rows_are_scattered_and_others_whole(parallel):
    x, w, y = pt.matrix("x"), pt.vector("w"), pt.vector("y")
    f = pytensor.function([x, w, y], [(x @ w - y).sum(), x @ w])
    rows, weights, labels = np.ones((7, 2)), np.array([1.0, 2]), np.arange(7.0)
    total, each = f(rows, weights, labels)
    assert total == 0
    assert each.tolist() == [3.0] * 7
    assert f(y=labels, x=rows, w=weights)[0] == 0
    assert "1 of 1 function ran on ranks (2 calls on 3 ranks" in str(parallel)


def test_numbers_do_not_depend_on_which_arguments_are_taken_for_rows(parallel):
    # All three have four rows, of different things.
    a, b, v = pt.matrix("a"), pt.matrix("b"), pt.vector("v")
    f = pytensor.function([a, b, v], [a @ b, (a @ v).sum(), b.max(axis=0)])
    rng = np.random.default_rng(1)
    first, second, third = rng.normal(size=(4, 4)), rng.normal(size=(4, 4)), np.ones(4)
    product, total, most = f(first, second, third)
    np.testing.assert_allclose(product, first @ second, rtol=1e-12)
    np.testing.assert_allclose(total, first.sum(), rtol=1e-12)
    assert (most == second.max(axis=0)).all()


def test_rows_that_a_number_chooses_of_shared_data_are_rows(parallel):
    data = pytensor.shared(np.arange(30.0).reshape(15, 2), name="data")
    x, index = pt.matrix("x"), pt.lscalar("index")
    w = pytensor.shared(np.ones(2), name="w")
    cost = ((x @ w - 1) ** 2).mean()
    updates = [(w, w - 1e-4 * pt.grad(cost, w))]
    batch = {x: data[index * 6 : (index + 1) * 6]}
    train = pytensor.function([index], cost, updates=updates, givens=batch)
    found = [float(train(i)) for i in range(3)]
    weights, expected = np.ones(2), []
    for i in range(3):
        rows = np.arange(30.0).reshape(15, 2)[i * 6 : (i + 1) * 6]
        expected.append(((rows @ weights - 1) ** 2).mean())
        weights = weights - 1e-4 * 2 * rows.T @ (rows @ weights - 1) / len(rows)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(w.get_value(), weights, rtol=1e-12)
    assert "(3 calls on 3 ranks" in str(parallel)


def test_shared_variables_go_between_calls_of_ranks_and_serial_ones(parallel):
    x, w, n = pt.vector("x"), pytensor.shared(0.0, name="w"), pt.scalar("n")
    add = pytensor.function([x], updates={w: w + x.sum()})
    double = pytensor.function([n], w * n, updates={w: w * n})
    add(np.ones(5))
    assert double(2.0) == 10  # without rows: it is PyTensor's own
    add(np.ones(5))
    assert w.get_value() == 15
    w.set_value(1.0)
    add(np.ones(2))
    assert w.get_value() == 3
    assert "1 without rows" in str(parallel)


# -- what a script may do with a function


def test_a_function_can_be_taken_for_a_compiled_one(parallel):
    x = pt.matrix("x")
    f = pytensor.function([x], [x.sum(), x.max()], name="both")
    assert isinstance(f, pytensor.compile.Function)
    assert f.name == "both"
    assert len(f.maker.fgraph.outputs) == 2
    assert f(np.ones((3, 2)), output_subset=[1]) == [1.0]
    copied = f.copy()
    assert copied(np.ones((3, 2))) == [6.0, 1.0]
    f.trust_input = False
    assert f(np.ones((3, 2))) == [6.0, 1.0]


def test_errors_are_pytensors(parallel):
    x, y = pt.vector("x"), pt.vector("y")
    with pytest.raises(pytensor.graph.utils.MissingInputError):
        pytensor.function([x], x + y)
    with pytest.raises(pytensor.compile.UnusedInputError):
        pytensor.function([x, y], x.sum())
    f = pytensor.function([x, y], (x + y).sum())
    with pytest.raises(TypeError):
        f(np.ones(3))
    with pytest.raises(TypeError):
        f(np.ones(3), np.ones((3, 3)))


def test_a_function_is_of_what_it_was_given_when_it_was_made(parallel):
    x, w = pt.vector("x"), pytensor.shared(1.0, name="w")
    outputs, updates = [x.sum()], [(w, w + x.sum())]
    f = pytensor.function([x], outputs, updates=(pair for pair in updates))
    outputs.append(x.max())
    with pytensor.config.change_flags(mode="NUMBA"):
        assert f(np.ones(4)) == [4]
        assert len(f.maker.fgraph.outputs) == 2  # one of them is an update
        assert type(f.maker.mode.linker).__name__ != "NumbaLinker"
    assert w.get_value() == 5


def test_functions_are_plain_again_after_the_block():
    plain = pytensor.function
    with synk.parallel_functions(2):
        assert pytensor.function is not plain
    assert pytensor.function is plain
    x = pt.vector("x")
    f = pytensor.function([x], x.sum())
    assert type(f) is pytensor.compile.Function
    assert not synk.is_forked()


def test_nothing_is_forked_for_functions_that_do_not_gain():
    with synk.parallel_functions(3) as parallel:
        x = pt.vector("x")
        functions = [pytensor.function([x], (x * i).sum()) for i in range(3)]
        assert [f(np.ones(4)) for f in functions] == [0, 4, 8]
        assert not synk.is_forked()
    assert str(parallel) == "0 of 3 functions ran on ranks; serial: 3 too small"
    assert parallel.explain().count("1 call serial, as too small") == 3


# -- the command

SCRIPT = """
    import sys
    import numpy
    import theano
    import theano.tensor as T

    rng = numpy.random.RandomState(0)
    data = rng.normal(size=(40_000, 20))
    x, y = T.matrix("x"), T.vector("y")
    w = theano.shared(numpy.zeros(20), name="w")
    chance = T.nnet.sigmoid(T.dot(x, w))
    cost = T.nnet.binary_crossentropy(chance, y).mean() + 0.01 * (w ** 2).sum()
    train = theano.function(
        [x, y], cost, updates=[(w, w - 0.1 * T.grad(cost, w))], name="train"
    )
    many = theano.function([x], T.dot(x, w)[:3], name="few")
    labels = (data[:, 0] > 0).astype(theano.config.floatX)
    for step in range(3):
        print("%.12f" % train(data, labels))
    print(many(data[:4]).shape, sys.argv[1:], __name__)
"""


@pytest.fixture
def run(tmp_path):
    """Return what runs ``python -m synk`` with a script."""

    def run(text, *options, told=()):
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(text))
        words = "-m", "synk", *options, path, *told
        flags = "mode=FAST_COMPILE,cxx="
        return run_python(*words, check=False, PYTENSOR_FLAGS=flags)

    return run


def test_a_script_of_theanos_is_run_by_ranks_as_it_is(run):
    told = "-v", "5"
    expected = run(SCRIPT, told=told)
    found = run(SCRIPT, "--parallel", "--ranks=2", "--explain", told=told)
    assert found.returncode == 0, found.stderr
    assert found.stdout == expected.stdout
    assert found.stdout.endswith("(3,) ['-v', '5'] __main__\n")
    last = found.stderr[found.stderr.index("[synk]") :]
    assert last.startswith("[synk] 1 of 2 functions ran on ranks (3 calls on 2 ranks")
    assert "train (made in script.py:" in last
    assert "3 calls on ranks" in last


def test_the_command_says_what_is_wrong_with_it(run):
    missing = run_python("-m", "synk", "--parallel", "none.py", check=False)
    assert missing.returncode == 2
    assert "can't open file" in missing.stderr
    ended = run("raise SystemExit(3)", "--parallel")
    assert ended.returncode == 3
    assert "[synk] no function was made" in ended.stderr


# -- tutorials, to the serial costs

PROGRAMS = "tutorial_logistic", "tutorial_scan", "tutorial_draws", "deep_belief"


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_has_the_serial_numbers_on_ranks(name, import_from):
    import_from(DOCS / "moving")
    program = getattr(importlib.import_module("deep_learning"), name)
    with pytensor.config.change_flags(**CHEAP):
        serial = program()
        with synk.parallel_functions(3, every=True) as parallel:
            found = program()
    synk.close()
    np.testing.assert_allclose(found, serial, rtol=1e-9, atol=1e-12)
    assert not str(parallel).startswith("0 "), parallel.explain()
    assert np.isfinite(serial).all()
    assert len(set(serial)) > 2
