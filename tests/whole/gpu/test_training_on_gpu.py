"""Training on a GPU: precisions of products, and demos beside their serial runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytensor.tensor as pt
import pytest
import test_precision as on_the_cpu
from children import in_a_child
from places import DEMOS

import synk

# The same tests, on the GPU.
test_products = on_the_cpu.test_products_and_their_gradients_are_those_of_jax_by_hand
test_others = on_the_cpu.test_nothing_but_products_of_float32_is_rounded
test_images = (
    on_the_cpu.test_an_image_that_is_convolved_is_read_in_16_bits_by_all_but_the_caller
)


@pytest.mark.parametrize("what", ["dot", "conv2d"])
@in_a_child
def test_float32_is_float32_and_tensorfloat32_has_ten_bits(what):
    """Of random factors, errors of products are some 2**-11 of the rounded ones'."""
    random = np.random.default_rng(0)
    shapes = [(256, 512), (512, 128)]
    if what == "conv2d":
        shapes = [(8, 64, 16, 16), (64, 64, 3, 3)]
    factors = [random.normal(size=shape) for shape in shapes]
    x, w = (pt.tensor(dtype="float32", shape=(None,) * f.ndim) for f in factors)
    y = x @ w if what == "dot" else synk.nn.conv2d(x, w)
    errors = {}
    with synk.session(1, devices=[0]):
        wide = [pt.tensor(dtype="float64", shape=(None,) * f.ndim) for f in factors]
        product = pt.dot if what == "dot" else synk.nn.conv2d
        right = synk.function(
            [], (product(*wide), None), bcast_inputs=wide, mode="JAX"
        )(*(factor.astype("float32").astype("float64") for factor in factors))
        for precision in (None, "float32", "tensorfloat32"):
            f = synk.function(
                [], (y, None), bcast_inputs=[x, w], mode="JAX", precision=precision
            )
            found = f(*(factor.astype("float32") for factor in factors))
            errors[precision] = np.abs(found - right).max() / np.abs(right).max()
    assert errors[None] < 1e-5
    assert errors["float32"] < 1e-5
    assert 2e-5 < errors["tensorfloat32"] < 2e-3


# -- the training demos

# With as many ranks on one GPU as the demo asks for.
ON_ONE_GPU = """
import runpy, sys, synk
real = synk.fork
synk.fork = lambda n: real(devices=[0] * n)
script, *sys.argv[1:] = sys.argv[1:]
sys.path.insert(0, script.rpartition("/")[0])
sys.argv[0] = script
runpy.run_path(script, run_name="__main__")
"""

RUNS = {
    "mnist, cnn": (
        *("mnist.py", "--digits", "--model", "cnn", "--hidden", "32", "--epochs", "2"),
        *("--dropout", "0", "--batch-size", "479"),
    ),
    "resnet50": (
        *("resnet50.py", "--image-size", "32", "--width", "8", "--blocks", "1", "1"),
        *("--classes", "10", "--rows", "64", "--batch", "16", "--epochs", "2"),
        *("--warm-up", "0", "--sync-bn", "--floatX", "float64"),
    ),
}
LIMIT = 240  # seconds


def number(command: list[str], folder: Path, **environment: str) -> float:
    """Return the last run's loss, which the demo's last line tells."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    last = done.stdout.splitlines()[-1]
    found = re.match(r"final: (?:\w+ loss )?(\d+\.\d+)", last)
    assert found, done.stdout
    return float(found[1])


@pytest.mark.parametrize("name", RUNS)
def test_ranks_on_a_gpu_end_where_the_serial_run_on_the_cpu_does(name, tmp_path):
    pytest.importorskip("lasagne", reason="Lasagne, of synk[demos], is not installed")
    script, *options = RUNS[name]
    demo = [str(DEMOS / script), *options, "--mode", "JAX"]
    expected = number([*demo, "--serial"], tmp_path, JAX_PLATFORMS="cpu")
    for ranks in (1, 2):
        found = number(["-c", ON_ONE_GPU, *demo, "--ranks", str(ranks)], tmp_path)
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)
