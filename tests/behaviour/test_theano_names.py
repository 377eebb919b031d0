"""`import theano` gives `synk.theano`, whose names are those of docs/theano.rst."""

import importlib
import inspect
import pickle
import pkgutil
import re
import runpy
import subprocess
import sys

import pytensor
import pytest
import theano
from places import DOCS

PAGE = (DOCS / "theano.rst").read_text()
STATES = ("same", "mapped", "written", "absent")
GPU_PACKAGES = ("theano.gpuarray", "theano.sandbox.gpuarray", "theano.sandbox.cuda")
_TABLE = re.compile(r"^Names of ``(\S+)``\.\n", re.M)
_ROW = re.compile(r"^   \* - ``(\S+)``\n     - (\w+)\n     -(.*)$", re.M)


def tables():
    """Yield the modules of the page, or classes, with their rows."""
    _, *parts = _TABLE.split(PAGE)
    for module, text in zip(parts[::2], parts[1::2], strict=True):
        yield module, _ROW.findall(text)


def resolved(name):
    """Return a module, or what a module has."""
    try:
        return importlib.import_module(name)
    except ImportError:
        place, _, last = name.rpartition(".")
        return getattr(resolved(place), last)


def of_pytensor():
    """Return the identities of what PyTensor's modules and classes have."""
    found = set()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "pytensor":
            for value in vars(module).values():
                found.add(id(value))
                if isinstance(value, type):
                    found.update(id(member) for member in vars(value).values())
    return found


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_names_are_as_the_page_says():
    wrong, same, counts = [], [], dict.fromkeys(STATES, 0)
    for module, rows in tables():
        owner = resolved(module)
        assert rows, module
        for name, state, remark in rows:
            counts[state] += 1
            if hasattr(owner, name) == (state == "absent"):
                wrong.append((module, name, state))
            elif state == "absent" and not remark:
                wrong.append((module, name, "says nothing"))
            elif state == "same":
                same.append((module, name, getattr(owner, name)))
    objects = of_pytensor()  # to look for the names has imported what has them
    for module, name, ours in same:
        if id(ours) not in objects and ours != getattr(pytensor.config, name, None):
            wrong.append((module, name, "not PyTensor's"))
    assert not wrong
    listed = ", ".join(f"{count} {state}" for state, count in counts.items())
    assert f"in these modules: {listed}." in PAGE


def test_every_name_has_one_state():
    listed = [(module, name) for module, rows in tables() for name, _, _ in rows]
    assert sorted(set(listed)) == sorted(listed)


def test_star_import_has_every_name_of_the_page():
    scope: dict = {}
    exec("from theano.tensor import *", scope)
    for module, rows in tables():
        if module == "theano.tensor":
            assert {name for name, state, _ in rows if state != "absent"} <= set(scope)
    assert "nonzero" in scope


def test_the_page_is_what_its_command_writes(tmp_path, monkeypatch):
    written = tmp_path / "theano.rst"
    monkeypatch.setattr(sys, "argv", ["names_page", str(written)])
    runpy.run_module("synk.theano.names_page", run_name="__main__")
    assert written.read_text() == PAGE


# -- modules

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


def test_modules_are_one_under_both_names():
    for name in MODULES:
        theirs = importlib.import_module(name)
        assert theirs is importlib.import_module(f"synk.{name}"), name
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


@pytest.mark.parametrize("name", GPU_PACKAGES)
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
    assert run(code).splitlines() == ["[]", "synk.theano.tensor.nnet"]


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
