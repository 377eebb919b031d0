"""`import theano` gives `synk.theano`, whose names are those of docs/theano.rst."""

import importlib
import inspect
import pickle
import re
import sys
import tomllib

import pytest
import theano
from children import run_python
from places import DOCS, TESTS

PAGE = (DOCS / "theano.rst").read_text()
USED = tomllib.loads((TESTS / "behaviour" / "theano_used.toml").read_text())
"""Names that programs of Theano's time use, by module -> who uses them."""

GPU_PACKAGES = ("theano.gpuarray", "theano.sandbox.gpuarray", "theano.sandbox.cuda")


def resolved(name):
    """Return a module, or what a module has."""
    try:
        return importlib.import_module(name)
    except ImportError:
        place, _, last = name.rpartition(".")
        return getattr(resolved(place), last)


def missing(module, names):
    owner = resolved(module)
    owner = owner(1) if isinstance(owner, type) else owner
    return [f"{module}.{name}" for name in names if not hasattr(owner, name)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_names_that_programs_use_are_there():
    names = dict(USED)
    for module in names.pop("modules"):
        assert importlib.import_module(module).__name__ == f"synk.{module}"
    assert not [name for module in names for name in missing(module, names[module])]


def test_names_are_as_the_page_says():
    rows = re.findall(r"^   \* - ``([\w.]+)``\n     - (.*(?:\n       .*)*)", PAGE, re.M)
    assert len(rows) > 15
    for module, text in rows:
        names = re.findall(r"``(\w+)``", text)
        assert not missing(module, set(names) - OF_ANOTHER_MODULE), module


OF_ANOTHER_MODULE = {"MRG_RandomStreams", "gen", "getOutputShape", "out_shape"}
OF_ANOTHER_MODULE |= set(USED["theano.sandbox.rng_mrg.MRG_RandomStreams"])


def test_star_import_has_pytensors_names_and_ours():
    scope: dict = {}
    exec("from theano.tensor import *", scope)
    assert {"nonzero", "cast", "sqr", "nnet", "RandomStreams"} <= scope.keys()
    assert not {"np", "partial", "Sequence"} & scope.keys()


# -- modules


def run(code: str, **environment: str) -> str:
    """Run Python code that prints, without flags and folders of ours; its output."""
    environment = {"PYTHONPATH": None, "PYTENSOR_FLAGS": None} | environment
    return run_python("-W", "ignore", "-c", code, **environment).stdout


def test_modules_are_one_under_both_names():
    for name in (*USED["modules"], *GPU_PACKAGES, "theano.gpuarray.dnn"):
        theirs = importlib.import_module(name)
        assert theirs is importlib.import_module(f"synk.{name}"), name
        assert theirs.__spec__.name == f"synk.{name}"


def test_functions_are_pickled_by_name_both_ways():
    from theano.tensor.nnet import relu

    assert pickle.loads(pickle.dumps(relu)) is relu
    by_old_name = b"ctheano.tensor.nnet\nrelu\n."
    assert pickle.loads(by_old_name) is relu
    assert pickle.loads(b"csynk.theano.tensor.nnet.nnet\nrelu\n.") is relu


def test_sources_are_those_of_the_functions_and_modules_hide_none():
    import theano.tensor.sort

    assert "def debugprint" in inspect.getsource(theano.printing.debugprint)
    assert inspect.getsource(theano.tensor.nnet.elu).startswith("def elu")
    assert inspect.isfunction(theano.tensor.sort)
    assert inspect.ismodule(sys.modules["theano.tensor.sort"])


# What Theano 1.0.5 (gpuarray) and 0.9 (cuda) do on a machine without CUDA and pygpu.
@pytest.mark.parametrize("name", GPU_PACKAGES)
def test_gpu_backends_are_there_and_not_activated_and_raise_in_use(name):
    package = importlib.import_module(name)
    is_old = name.endswith("cuda")
    assert not (package.cuda_enabled if is_old else package.pygpu_activated)
    package.use("cpu")
    with pytest.warns(UserWarning, match=r"use\('cuda0'\).*JAX") as warned:
        package.use("cuda0", preallocate=0.5)
    assert warned[0].filename == __file__
    error = RuntimeError if is_old else ValueError
    reason = "CUDA not available" if is_old else "PyGPU not available"
    dnn = package.dnn
    assert dnn is importlib.import_module(f"{name}.dnn")
    answers = [dnn.dnn_available]
    if not is_old:
        answers.append(dnn.dnn_present)
        assert dnn.version(raises=False) == -1
    for answer in answers:
        assert answer() is answer(None) is False
        assert answer.msg == reason
    with pytest.raises(RuntimeError, match="can't determine the cudnn version"):
        dnn.version()
    blas = importlib.import_module(f"{name}.blas")
    basic_ops = importlib.import_module(f"{name}.basic_ops")
    types = importlib.import_module(f"{name}.type")
    kind = getattr(types, next(n for n in dir(types) if n.endswith("rrayType")))
    x = theano.tensor.ftensor4()
    assert not isinstance(x.type, kind)
    for use in (
        lambda: dnn.dnn_conv(x, x, border_mode="valid"),
        lambda: dnn.dnn_pool(x, (2, 2)),
        lambda: dnn.GpuDnnPool(mode="max")(x),
        lambda: blas.GpuCorrMM(subsample=(2, 2))(x, x),
        lambda: basic_ops.gpu_contiguous(x),
        lambda: basic_ops.host_from_gpu(x),
        lambda: kind("float32", (False,)),
    ):
        with pytest.raises(error, match=r'theano\..*mode="JAX"'):
            use()
    assert not hasattr(dnn, "nonsense")
    assert not hasattr(package, "CudaNdarray")
    for missing in "cuda_ndarray", "nonsense":
        with pytest.raises(ModuleNotFoundError, match=f"no {name}.{missing}"):
            importlib.import_module(f"{name}.{missing}")
    with pytest.raises(ImportError, match="nonsense"):
        exec(f"from {name}.dnn import nonsense")
    assert pickle.loads(pickle.dumps(blas.GpuCorrMM)) is blas.GpuCorrMM


def test_unknown_names_say_where_to_look():
    with pytest.raises(AttributeError, match=r"pytensor\.tensor.*Theano's names"):
        _ = theano.tensor.nonsense
    with pytest.raises(ModuleNotFoundError, match=r"theano\.nonsense"):
        importlib.import_module("theano.nonsense")
    with pytest.raises(AttributeError, match=r"numpy\.load"):
        _ = theano.tensor.load
    with pytest.raises(ImportError, match="load"):
        from theano.tensor import load  # noqa: F401


def test_import_synk_loads_nothing_of_it_and_it_can_be_turned_off():
    code = (
        "import sys, synk\n"
        "print([m for m in sys.modules if m.startswith(('synk.theano', 'theano'))])\n"
        "try: import theano.tensor.nnet as nnet; print(nnet.__name__)\n"
        "except ModuleNotFoundError as error: print(error)\n"
    )
    assert run(code).splitlines() == ["[]", "synk.theano.tensor.nnet"]
    off = run(code, SYNK_THEANO="0").splitlines()
    assert off == ["[]", "No module named 'theano'"]


def test_an_installed_theano_comes_first(tmp_path):
    package = tmp_path / "theano"
    (package / "tensor").mkdir(parents=True)
    (package / "__init__.py").write_text("whose = 'theirs'\n")
    (package / "tensor" / "__init__.py").write_text("whose = 'theirs'\n")
    code = (
        "import synk, synk.theano.tensor\n"
        "import theano, theano.tensor\n"
        "print(theano.whose, theano.tensor.whose, theano is synk.theano)\n"
        "try: import theano.gradient\n"
        "except ModuleNotFoundError as error: print(error)\n"
    )
    assert run(code, PYTHONPATH=str(tmp_path)).splitlines() == [
        "theirs theirs False",
        "No module named 'theano.gradient'",
    ]
