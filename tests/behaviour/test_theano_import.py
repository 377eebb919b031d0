"""`import theano` gives `synk.theano`, and nothing about modules breaks by it."""

import importlib
import inspect
import pickle
import pkgutil
import runpy
import subprocess
import sys
from importlib.machinery import PathFinder

import pytest
import theano

from synk.finders import theano_names

MODULES = [
    "theano",
    "theano.compat",
    "theano.compat.python2x",
    "theano.compile",
    "theano.compile.debugmode",
    "theano.compile.nanguardmode",
    "theano.compile.sharedvalue",
    "theano.configdefaults",
    "theano.configparser",
    "theano.gof",
    "theano.gof.graph",
    "theano.gpuarray",
    "theano.gpuarray.dnn",
    "theano.gpuarray.type",
    "theano.gradient",
    "theano.ifelse",
    "theano.printing",
    "theano.sandbox.cuda",
    "theano.sandbox.cuda.dnn",
    "theano.sandbox.gpuarray",
    "theano.sandbox.rng_mrg",
    "theano.scalar",
    "theano.scan_module",
    "theano.scan_module.scan_utils",
    "theano.tensor",
    "theano.tensor.basic",
    "theano.tensor.elemwise",
    "theano.tensor.extra_ops",
    "theano.tensor.nlinalg",
    "theano.tensor.nnet",
    "theano.tensor.nnet.abstract_conv",
    "theano.tensor.nnet.bn",
    "theano.tensor.nnet.conv",
    "theano.tensor.nnet.neighbours",
    "theano.tensor.nnet.nnet",
    "theano.tensor.shared_randomstreams",
    "theano.tensor.signal",
    "theano.tensor.signal.downsample",
    "theano.tensor.signal.pool",
    "theano.tensor.slinalg",
    "theano.tensor.sort",
    "theano.tensor.var",
]


def run(code: str, **environment: str) -> str:
    """Run Python code that prints; its output."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_one_under_both_names(name):
    theirs = importlib.import_module(name)
    assert theirs is importlib.import_module(f"synk.{name}")
    assert theirs.__spec__.name == f"synk.{name}"


def test_functions_stay_where_a_module_has_their_name():
    import theano.tensor.sort
    import theano.tensor.var

    assert callable(theano.tensor.var)
    assert callable(theano.tensor.sort)
    assert callable(theano.scan)


def test_all_submodules_can_be_walked():
    walked = list(pkgutil.walk_packages(theano.__path__, "theano."))
    assert {name for name in MODULES if name != "theano"} <= {m.name for m in walked}
    for found in walked:
        importlib.import_module(found.name)


def test_functions_are_pickled_by_name_both_ways():
    from theano.tensor.nnet import relu

    assert pickle.loads(pickle.dumps(relu)) is relu
    by_old_name = b"ctheano.tensor.nnet\nrelu\n."
    assert pickle.loads(by_old_name) is relu
    assert pickle.loads(b"csynk.theano.tensor.nnet.nnet\nrelu\n.") is relu


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_reload_source_and_run_module():
    import theano.printing

    module = theano.printing
    assert importlib.reload(module) is module is sys.modules["synk.theano.printing"]
    assert "def debugprint" in inspect.getsource(module)
    assert inspect.getsource(theano.tensor.nnet.elu).startswith("def elu")
    assert callable(
        runpy.run_module("synk.theano.configdefaults")["config"].change_flags
    )


def test_the_finder_is_registered_once_and_last():
    for _ in range(2):
        theano_names.register()
    kinds = [
        finder if isinstance(finder, type) else type(finder) for finder in sys.meta_path
    ]
    assert kinds.count(theano_names._Fallback) == 1
    assert kinds.index(theano_names._Fallback) > kinds.index(PathFinder)


@pytest.mark.parametrize("name", theano_names.GPU_PACKAGES)
def test_gpu_backends_are_there_and_not_activated(name):
    package = importlib.import_module(name)
    flag = "cuda_enabled" if name.endswith("cuda") else "pygpu_activated"
    assert getattr(package, flag) is False
    package.use("cpu")
    with pytest.warns(UserWarning, match=r"use\('cuda0'\).*JAX") as warned:
        package.use("cuda0", preallocate=0.5)
    assert warned[0].filename == __file__


# What Theano 1.0.5 (gpuarray) and 0.9 (cuda) do on a machine without CUDA and pygpu.
@pytest.mark.parametrize(
    ("name", "error", "reason"),
    [
        ("theano.gpuarray", ValueError, "PyGPU not available"),
        ("theano.sandbox.gpuarray", ValueError, "PyGPU not available"),
        ("theano.sandbox.cuda", RuntimeError, "CUDA not available"),
    ],
)
def test_names_of_gpu_backends_are_imported_and_raise_in_use(name, error, reason):
    package = importlib.import_module(name)
    dnn = package.dnn
    assert dnn is importlib.import_module(f"{name}.dnn")
    answers = [dnn.dnn_available]
    if "gpuarray" in name:
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


def test_import_synk_loads_nothing_of_it():
    code = (
        "import sys, synk\n"
        "print([m for m in sys.modules if m.startswith(('synk.theano', 'theano'))])\n"
        "import theano, theano.tensor.nnet as nnet\n"
        "print(nnet.__name__)\n"
    )
    assert run(code).splitlines() == [
        "[]",
        "synk.theano.tensor.nnet",
    ]


def test_it_can_be_turned_off():
    code = (
        "import synk\n"
        "try: import theano\n"
        "except ModuleNotFoundError as error: print(error)\n"
    )
    assert run(code, SYNK_THEANO="0") == "No module named 'theano'\n"


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
