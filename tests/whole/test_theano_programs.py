"""Programs of then: Keras 2 on the Theano backend, Lasagne 0.2, Lasagne's version.

Models of Keras train and predict as on Theano itself. They are programs of their own
(``keras_models.py``): Keras needs `keras_today` first, which changes h5py and NumPy. Of
Lasagne 0.2 there is no release. Where it is not installed, its wheel is looked for: in
the environment variable ``SYNK_LASAGNE_WHEEL``, and in ``../shared/wheels`` beside the
checkout. A wheel of pure Python is imported as it is.
"""

import importlib.metadata
import json
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from children import run_python
from places import DOCS, ROOT, SUPPORT


def _version() -> str:
    try:
        return importlib.metadata.version("keras")
    except importlib.metadata.PackageNotFoundError:
        return ""


with_keras = pytest.mark.skipif(
    not _version().startswith("2."), reason="needs Keras 2 (pip install keras==2.3.1)"
)

# Losses, evaluations and predictions of Keras 2.3.1 on Theano 1.0.5, with Python 3.8,
# NumPy 1.19 and its OpenBLAS:
#     THEANO_FLAGS=floatX=float64,optimizer=fast_compile \
#         python3.8 tests/support/keras_models.py mlp cnn lstm stateful functional
OF_THEANO = json.loads((SUPPORT / "keras_values.json").read_text())


SERIALLY, BY_RANKS = ("mlp", "stateful", "lstm"), ("cnn", "functional")
BY_A_TRAINER = "exact", "by_a_rule", "of_json"


def run(*arguments: str | Path, before: Iterable = (), **environment: str) -> str:
    """Run Python, with folders before its path; what it has printed."""
    places = [*map(str, before), str(ROOT), os.environ.get("PYTHONPATH", "")]
    flags = {"PYTENSOR_FLAGS": "mode=FAST_COMPILE,cxx="}
    flags["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    return run_python(*arguments, **flags | environment).stdout


# FAST_COMPILE without the shapes of all variables, which take a third of its time.
QUICK = "cxx=,linker=vm,optimizer=fast_compile,optimizer_excluding=ShapeOpt"


def run_keras(tmp_path: Path, *arguments: str | Path, flags="floatX=float64") -> str:
    """Run a program of Keras, which writes its settings to the home folder."""
    environment = {"HOME": str(tmp_path), "KERAS_BACKEND": "theano"}
    environment |= {"PYTENSOR_FLAGS": f"{QUICK},traceback__limit=0"}
    environment |= {"THEANO_FLAGS": flags}
    before = (DOCS / "keras",)
    return run("-W", "ignore", *arguments, before=before, **environment)


@pytest.fixture(scope="module")
def serially(tmp_path_factory):
    """Return what `keras_models.py` prints of models that one process has trained."""
    script, folder = SUPPORT / "keras_models.py", tmp_path_factory.mktemp("keras")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        asked, flags = (*SERIALLY, *BY_A_TRAINER), "floatX=float64,mode=FAST_COMPILE"
        printed = run_keras(folder, "-m", "synk", script, *asked, flags=flags)
    return dict(map(json.loads, printed.splitlines()))


@with_keras
def test_models_train_and_predict_as_on_theano(serially):
    for name in SERIALLY:
        close(serially[name], OF_THEANO[name], name, 1e-9)


@with_keras
def test_the_example_of_the_page_imports_synk_and_prints_what_it_shows(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "keras.rst").read_text()
    shown = page.partition("It prints::\n\n")[2].partition("\n\n")[0]
    printed = run_keras(tmp_path, DOCS / "keras" / "circles.py")
    assert printed.strip() == shown.strip() != ""
    assert (tmp_path / "circles.h5").exists()


@with_keras
def test_scripts_of_keras_run_by_ranks_as_they_are(tmp_path):
    command = "-m", "synk", "--parallel", "--every", "--ranks=2"
    script = SUPPORT / "keras_models.py"
    found = run_keras(tmp_path, *command, script, *BY_RANKS).splitlines()
    for name, values in map(json.loads, found):
        close(values, OF_THEANO[name], name, 1e-9)
    assert len(found) == len(BY_RANKS)


def close(found, other, name: str, bound: float = 1e-12) -> None:
    np.testing.assert_allclose(found, other, bound, 1e-12, err_msg=name)


@with_keras
def test_layers_are_those_of_numpy_serially_and_by_ranks(tmp_path):
    how = "--parallel", "--every", "--ranks=2"
    printed = run_keras(tmp_path, "-m", "synk", *how, SUPPORT / "keras_layers.py")
    families = list(map(json.loads, printed.splitlines()))
    assert sum(len(layers) for _, _, layers, _, _ in families) >= 70
    for name, ranks, layers, numbers, serial in families:
        assert ranks == 2
        for layer, (output, *gradient) in layers.items():
            close(output, 0, f"{name}: {layer}")
            assert np.allclose(gradient, 0, 0, 1e-7), f"{name}: gradient of {layer}"
        if name != "recurrent":  # which makes its step on ranks alone
            close(numbers, serial, name)


@with_keras
def test_a_trainer_takes_a_model_of_keras(serially):
    exact, (before, after), of_json = (serially[name] for name in BY_A_TRAINER)
    np.testing.assert_allclose(exact[1], exact[0], 1e-10, 1e-12)
    assert after < 0.8 * before
    assert of_json[0] == of_json[1]


@with_keras
def test_the_example_of_mpi_learn_trains_a_model_of_a_file(tmp_path):
    how = "--epochs=2", "--ranks=2", "--batch=40", "--learning-rate=0.005"
    script = ROOT / "demos" / "mpi_learn_mnist.py"
    printed = run_keras(tmp_path, script, *how, "--synchronous")
    last = printed.splitlines()[-1]
    assert last.startswith("epoch 2: loss ")
    assert float(last.split()[-1]) > 0.85


# -- Lasagne

CHECKS = (
    *("batch_normalisation", "gated_recurrent_units"),
    *("the_order_of_parameters", "layers_for_gpus"),
)


def wheel() -> Path | None:
    """Return the wheel, or None if Lasagne 0.2 is installed; skip without either."""
    given = os.environ.get("SYNK_LASAGNE_WHEEL")
    if given:
        assert Path(given).is_file(), f"SYNK_LASAGNE_WHEEL={given}: no such file"
        return Path(given)
    for found in sorted(ROOT.parent.glob("shared/wheels/lasagne-0.2*.whl")):
        return found
    if hasattr(pytest.importorskip("lasagne.layers"), "BatchNormLayer"):
        return None
    pytest.skip("Lasagne 0.2 is not here; SYNK_LASAGNE_WHEEL says where its wheel is")


def test_networks_of_lasagne_02_train_on_two_ranks_to_the_serial_numbers():
    before = filter(None, [wheel()])
    script = SUPPORT / "lasagne_newest.py"
    arguments = "-W", "ignore::SyntaxWarning", script, *CHECKS
    printed = run(*arguments, before=before, PYTENSOR_FLAGS=QUICK)
    assert printed.split() == list(CHECKS)


HIDDEN = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        if name != "pkg_resources":
            return self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Without, sys.meta_path)  # as where setuptools is not, or new
"""
ASKS = """
import sys
import synk

def ask():
    try:
        import pkg_resources
        print(pkg_resources.__file__)
    except (ImportError, UserWarning) as error:
        print(error)

ask()
import lasagne
print(lasagne.__version__, hasattr(lasagne, "pkg_resources"))
print("pkg_resources" in sys.modules)
ask()
"""
OF_01 = """
import pkg_resources
__version__ = pkg_resources.get_distribution("Lasagne").version
del pkg_resources
"""
INSTALLED = """
import warnings
warnings.warn("pkg_resources is deprecated as an API.", UserWarning, 2)
class get_distribution:
    version = "the real one"
    def __init__(self, name): assert name == "Lasagne"
"""


@pytest.fixture
def lasagne(tmp_path):
    """Make a Lasagne that imports `pkg_resources` as 0.1 does; the folder it is in."""
    (tmp_path / "lasagne").mkdir()
    (tmp_path / "lasagne/__init__.py").write_text(OF_01)
    (tmp_path / "Lasagne-0.1.7.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: Lasagne\nVersion: 0.1.7\n"
    (tmp_path / "Lasagne-0.1.7.dist-info/METADATA").write_text(metadata)
    return tmp_path


STRICT = ("-W", "error::UserWarning", "-c")


def test_without_pkg_resources_lasagne_gets_an_answer_and_nobody_else_does(lasagne):
    missing = "No module named 'pkg_resources'"
    printed = run(*STRICT, HIDDEN + ASKS, before=(lasagne,)).splitlines()
    assert printed == [missing, "0.1.7 False", "False", missing]


def test_one_that_is_installed_is_asked_and_warns_others_only(lasagne):
    real = lasagne / "pkg_resources.py"
    real.write_text(INSTALLED)
    printed = run(*STRICT, ASKS, before=(lasagne,)).splitlines()
    warning = "pkg_resources is deprecated as an API."
    assert printed == [warning, "the real one False", "True", str(real)]
