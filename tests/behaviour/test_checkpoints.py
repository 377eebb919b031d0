"""Checkpoints: what is saved comes back on every rank, or an error and nothing."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytensor.tensor as pt
import pytest
import scipy.sparse
from checkpointing import a_few, make, overwrite, shared
from reference import DTYPES, PY, SHAPES, assert_same, refused, values_of
from world_sizes import one_and_three_ranks

import synk
from synk.ranks.session import SESSION

# -- values ----------------------------------------------------------------------------


@one_and_three_ranks
def test_every_dtype_and_shape_comes_back_exactly_on_every_rank(checkpoint, ranks):
    dtypes = [d for d in DTYPES if checkpoint.suffix == ".npz" or "complex" not in d]
    values = {
        f"{dtype} {shape}": np.asarray(values_of(dtype, shape, 1))
        for dtype in dtypes
        for shape in SHAPES
    }
    variables = make(values)
    synk.save(checkpoint, variables)
    synk.broadcast(variables, [np.zeros_like(value) for value in values.values()])
    synk.load(checkpoint, variables)
    for rank in range(ranks):
        loaded = synk.get_value(rank, variables)
        for got, right in zip(loaded, values.values(), strict=True):
            assert_same(got, right, 0)
            assert got.tobytes() == right.tobytes()


def test_no_session_is_needed(checkpoint):
    values = a_few()
    variables = make(values)
    synk.save(checkpoint, variables)
    overwrite(variables)
    synk.load(checkpoint, variables)
    for var, right in zip(variables, values.values(), strict=True):
        assert_same(var.get_value(), right, 0)
    fresh = make({name: np.zeros_like(value) for name, value in values.items()})
    with synk.session(2):
        synk.load(checkpoint, fresh)  # variables that the ranks have not seen before
        for rank in range(2):
            assert_same(synk.get_value(rank, fresh[0]), values["w"], 0)
    synk.save(checkpoint, fresh[0])
    assert_same(fresh[0].get_value(), values["w"], 0)


def test_special_values_and_layouts_keep_their_bits(checkpoint):
    nan = np.array([0x7FF8000000000123], "uint64").view("float64")
    floats = shared(np.array([*nan, -0.0, np.inf, 5e-324]), "floats")
    fortran = shared(np.asfortranarray(values_of("float64", (4, 3))), "fortran")
    strided = shared(np.zeros(1), "strided")
    strided.set_value(np.arange(20.0)[::-3], borrow=True)
    variables = [floats, fortran, strided]
    before = [var.get_value() for var in variables]
    synk.save(checkpoint, variables)
    overwrite(variables)
    synk.load(checkpoint, variables)
    for var, right in zip(variables, before, strict=True):
        assert var.get_value().tobytes() == right.tobytes()


@one_and_three_ranks
def test_rank_0s_value_is_saved_and_every_rank_gets_it(checkpoint, ranks):
    w = shared(np.zeros(2), "w")
    for rank in range(ranks):
        synk.set_value(rank, w, np.full(2, rank + 5.0))
    synk.save(checkpoint, w)
    synk.load(checkpoint, w)
    assert_same(synk.gather(w), np.full((ranks, 2), 5.0))


def test_a_loaded_value_counts_alike_on_all_ranks_in_the_next_average(checkpoint):
    x, w = pt.vector("x"), shared(0.0, "w")
    mean = synk.function([x], updates={w: x.mean()}, mode=PY)
    with synk.session(2):
        mean(np.arange(5.0))
        synk.all_reduce(w)  # w has a home now
        synk.save(checkpoint, w)
        mean(np.arange(5.0))
        synk.load(checkpoint, w)
        assert_same(synk.gather(w), np.full(2, 2.0))
        synk.set_value(1, w, 4.0)
        synk.all_reduce(w)
        assert_same(synk.gather(w), np.full(2, 3.0))


def test_shapes_may_change_where_the_type_leaves_them_open(checkpoint):
    w = shared(np.zeros((4, 2)), "w")
    synk.save(checkpoint, w)
    w.set_value(np.ones((1, 1)))
    synk.load(checkpoint, w)
    assert_same(w.get_value(), np.zeros((4, 2)))


def test_the_extension_says_the_format_whatever_its_case(checkpoint):
    w = shared(np.ones(3), "w")
    loud = checkpoint.with_suffix(checkpoint.suffix.upper())
    synk.save(str(loud), w)
    w.set_value(np.zeros(3))
    synk.load(loud, w)
    assert_same(w.get_value(), np.ones(3))
    for name in ("w", "w.npy", "w.pkl", ".npz"):
        with pytest.raises(ValueError, match=r"must end in \.npz or \.safetensors"):
            synk.save(checkpoint.with_name(name), w)
        with pytest.raises(ValueError, match=r"must end in \.npz or \.safetensors"):
            synk.load(checkpoint.with_name(name), w)


def test_equal_values_make_equal_files(checkpoint):
    synk.save(checkpoint, make(a_few(), rng=3))
    first = checkpoint.read_bytes()
    synk.save(checkpoint, make(a_few(), rng=3))
    assert checkpoint.read_bytes() == first


# -- what does not fit -----------------------------------------------------------------


def _misfits():
    yield "missing", np.zeros(2), "other", {}, "no value for other; it has last, w"
    yield "dtype", np.zeros(2, "float32"), "w", {}, "float64 .*float32"
    yield "wider", np.zeros(2, complex), "w", {}, "float64 .*complex128"
    yield "integers", np.zeros(2, "int64"), "w", {}, "float64 .*int64"
    yield "dimensions", np.zeros((2, 1)), "w", {}, r"shape \(2,\).*Matrix"
    yield "shape", np.zeros(3), "w", {"shape": (3,)}, r"shape \(2,\)"


@pytest.mark.parametrize(
    ("value", "name", "options", "match"),
    [pytest.param(*c[1:], id=c[0]) for c in _misfits()],
)
def test_what_does_not_fit_is_refused_and_nothing_is_loaded(
    checkpoint, two_ranks, value, name, options, match
):
    synk.save(checkpoint, [shared(np.ones(2), "w"), shared(np.ones(1), "last")])
    first, last = shared(np.zeros(2), "first"), shared(np.zeros(1), "last")
    misfit = shared(value, name, **options)
    asked = {"last": last, name: misfit}
    synk.broadcast([first, last, misfit])
    with refused(synk.CheckpointError, match):
        synk.load(checkpoint, asked)
    with refused(synk.CheckpointError, match):
        synk.load(checkpoint, dict(reversed(asked.items())))
    for rank in range(2):
        assert_same(synk.get_value(rank, last), np.zeros(1))
        assert_same(synk.get_value(rank, misfit), value)


def test_a_file_may_hold_more_than_is_asked_for(checkpoint):
    a, b = shared(np.ones(2), "a"), shared(np.ones(3), "b")
    synk.save(checkpoint, [a, b])
    overwrite([a, b])
    synk.load(checkpoint, b)
    assert_same(a.get_value(), np.full(2, 4.0))
    assert_same(b.get_value(), np.ones(3))


def test_what_cannot_be_stored_is_refused(checkpoint):
    sparse = shared(scipy.sparse.csr_matrix(np.eye(2)), "sparse")
    for call in (synk.save, synk.load):
        for bad, error, match in [
            (sparse, TypeError, "sparse is a .*only dense tensors and random"),
            ([shared(0.0, "a"), pt.vector("v")], TypeError, "shared variables, got v"),
            ([np.zeros(2)], TypeError, "shared variables, got"),
            ({"a": np.zeros(2)}, TypeError, "shared variables, got"),
            ({3: shared(0.0)}, TypeError, "must be of type str, got 3"),
            ({"": shared(0.0)}, ValueError, "cannot have the name ''"),
            ({"a\0b": shared(0.0)}, ValueError, "cannot have the name"),
            ({"__metadata__": shared(0.0)}, ValueError, "cannot have the name"),
        ]:
            with pytest.raises(error, match=match):
                call(checkpoint, bad)
    assert not os.listdir(checkpoint.parent)


def test_complex_numbers_are_stored_in_npz_alone(checkpoint):
    z = shared(np.ones(2, "complex64"), "z")
    if checkpoint.suffix == ".npz":
        synk.save(checkpoint, z)
        assert checkpoint.exists()
    else:
        with pytest.raises(TypeError, match=r"z is complex64.*use \.npz"):
            synk.save(checkpoint, z)
        assert not os.listdir(checkpoint.parent)


def test_without_safetensors_the_error_says_what_to_install(tmp_path, monkeypatch):
    for name in ("safetensors", "safetensors.numpy"):
        monkeypatch.setitem(sys.modules, name, None)
    w, checkpoint = shared(np.ones(2), "w"), tmp_path / "w.safetensors"
    with pytest.raises(ImportError, match="pip install safetensors"):
        synk.save(checkpoint, w)
    assert not os.listdir(tmp_path)
    checkpoint.touch()
    with pytest.raises(ImportError, match="pip install safetensors"):
        synk.load(checkpoint, w)


# -- names -----------------------------------------------------------------------------


def test_any_name_will_do(checkpoint):
    names = [
        "file",
        "allow_pickle",
        "a/b",
        "../up",
        "/root",
        "x.npy",
        "x",
        "Größe",
        " ",
    ]
    values = {name: np.full(i + 1, float(i)) for i, name in enumerate(names)}
    variables = make(values)
    synk.save(checkpoint, variables)
    overwrite(variables)
    synk.load(checkpoint, variables)
    for var, right in zip(variables, values.values(), strict=True):
        assert_same(var.get_value(), right)


def test_a_dict_names_variables_for_the_file(checkpoint):
    a, b = shared(np.ones(2), "same"), shared(np.zeros(2), "same")
    for call in (synk.save, synk.load):
        with pytest.raises(ValueError, match="several variables are named same"):
            call(checkpoint, [a, b])
    synk.save(checkpoint, {"a": a, "b": b})
    c = shared(np.zeros(2))
    synk.load(checkpoint, {"a": c})
    assert_same(c.get_value(), np.ones(2))


def test_variables_without_names_go_by_their_place_in_lists_of_one_length(checkpoint):
    a, b = shared(np.ones(2)), shared(np.zeros(2))
    synk.save(checkpoint, [a, b])
    overwrite([a, b])
    synk.load(checkpoint, [a, b])
    assert_same(a.get_value(), np.ones(2))
    assert_same(b.get_value(), np.zeros(2))
    for others in ([b], [a, b, shared(0.0)]):
        with pytest.raises(synk.CheckpointError, match="has no value for unnamed 0 of"):
            synk.load(checkpoint, others)
    with pytest.raises(TypeError, match="a set has no order"):
        synk.save(checkpoint, {a, b})


def test_lists_without_sense_are_refused(checkpoint):
    a, b = shared(np.ones(2), "a"), shared(np.zeros(2), "a:bit_generators")
    rng = shared(np.random.default_rng(1), "a")
    with pytest.raises(ValueError, match="twice"):
        synk.save(checkpoint, [a, a])
    with pytest.raises(ValueError, match="twice"):
        synk.save(checkpoint, {"x": a, "y": a})
    with pytest.raises(ValueError, match="several variables are named a:bit"):
        synk.save(checkpoint, [rng, b])
    with pytest.raises(TypeError, match=r"list\(updates\)"):
        synk.save(checkpoint, synk.updates.sgd([pt.ones(2)], [a], 0.1))
    assert not os.listdir(checkpoint.parent)
    synk.save(checkpoint, [])
    synk.load(checkpoint, [])


# -- states ----------------------------------------------------------------------------


def worker_checkpoint(context, checkpoint):
    """Save and load on a rank: not for ranks."""
    if context.rank:
        for call in (synk.save, synk.load):
            with pytest.raises(synk.StateError, match="only the master"):
                call(checkpoint, [])


def test_ranks_are_refused(checkpoint, two_ranks):
    SESSION.run(worker_checkpoint, str(checkpoint))
    assert not checkpoint.exists()
