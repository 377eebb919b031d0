"""C modes: products of matrices by the OpenBLAS of SciPy's wheels."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.sparse
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.sparse.rewriting import usmm_csc_dense
from threadpoolctl import threadpool_info

import synk
from synk.engines.c_blas import FUNCTIONS, ldflags, scipy_folder
from synk.engines.c_compiler import c_is_there
from synk.engines.c_settings import compile_in_c

FLAGS = ldflags(scipy_folder())

needs_blas = pytest.mark.skipif(
    not (c_is_there() and FLAGS), reason="needs a C compiler, and SciPy from a wheel"
)


def in_one_module(inputs, outputs):
    return compile_in_c("C", pytensor.function, inputs, outputs, mode="C")


def blas_names(function) -> set[str]:
    """Return the BLAS functions that one module calls, by the names they have there."""
    code = Path(function.vm.module.__file__).read_bytes()
    named = rb"\0((?:scipy_)?[sd](?:gemm|gemv|ger|dot|axpy)_)(?=\0)"
    return {name.decode() for name in re.findall(named, code)}


@needs_blas
@pytest.mark.parametrize(("dtype", "eps"), [("float32", 1e-5), ("float64", 1e-13)])
def test_products_are_right_and_scipys(dtype, eps):
    a, v = pt.matrix("a", dtype=dtype), pt.vector("v", dtype=dtype)
    c = pt.tensor3("c", dtype=dtype)
    made = [a @ a.T, a + 2 * a @ a.T @ a, a.T @ v, pt.outer(v, v) + a.T @ a, c @ c]
    f = in_one_module([a, v, c], [*made, v @ v])
    random = np.random.default_rng(0)
    x, u, d = (random.normal(size=n).astype(dtype) for n in ((7, 7), 7, (3, 7, 7)))
    right = [x @ x.T, x + 2 * x @ x.T @ x, x.T @ u, np.outer(u, u) + x.T @ x, d @ d]
    for value, expected in zip(f(x, u, d), [*right, u @ u], strict=True):
        np.testing.assert_allclose(value, expected, rtol=0, atol=50 * eps)
    # Each of PyTensor's Ops has code for both dtypes; before 3.3 one of them is Ger.
    least = {f"scipy_{letter}{kind}_" for letter in "sd" for kind in ("gemm", "gemv")}
    assert least <= blas_names(f) <= {f"scipy_{name}" for name in FUNCTIONS}


@needs_blas
def test_products_of_sparse_matrices_are_scipys_too():
    b, z = pt.dmatrix("b"), pt.dmatrix("z")
    x = scipy.sparse.csc_matrix(np.arange(12.0).reshape(4, 3))
    parts = [x.data, x.indices, x.indptr, np.int32(4)]
    made = usmm_csc_dense(np.array([[-1.0]]), *map(pt.constant, parts), b, z)
    f = in_one_module([b, z], made)
    value = f(x.toarray().T, np.ones((4, 4)))
    np.testing.assert_allclose(value, 1 - (x @ x.T).toarray())
    assert "scipy_daxpy_" in blas_names(f)
    assert blas_names(f) <= {f"scipy_{name}" for name in FUNCTIONS}


def blas_threads() -> dict[str, int]:
    """Return the numbers of threads of the libraries with a thread pool."""
    return {info["filepath"]: info["num_threads"] for info in threadpool_info()}


class Threads(Op):
    """Returns, for every row, the most threads of any library here."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [pt.dvector()])

    def perform(self, node, inputs, outputs):
        most = max(blas_threads().values())
        outputs[0][0] = np.full(len(inputs[0]), float(most))


@needs_blas
def test_no_library_is_loaded_beside_those_whose_threads_are_capped():
    before = set(blas_threads())
    x = pt.dmatrix("x")
    with synk.session(2):
        product = synk.function([x], (x.T @ x, "sum"), mode="CVM")
        np.testing.assert_allclose(product(np.ones((4, 2))), np.full((2, 2), 4))
        threads = synk.function([x], (Threads()(x), "gather"), mode="CVM")
        assert threads(np.ones((4, 2))).tolist() == [1.0] * 4
    assert set(blas_threads()) == before


# -- where there is none


def test_without_a_library_of_scipys_nothing_is_set(tmp_path):
    assert ldflags(None) == ""
    assert ldflags(tmp_path / "scipy.libs") == ""
    assert ldflags(tmp_path) == ""
    (tmp_path / "libscipy_openblas64_-12ab.so").touch()
    assert ldflags(tmp_path) == ""


def test_a_library_that_is_another_is_left_alone(tmp_path):
    (tmp_path / "libscipy_openblas-12ab.so").write_text("no library")
    assert ldflags(tmp_path) == ""


@needs_blas
def test_folders_with_spaces(tmp_path):
    folder = tmp_path / "a folder"
    folder.symlink_to(scipy_folder())
    flags = ldflags(folder)
    assert f"'-L{folder}'" in flags
