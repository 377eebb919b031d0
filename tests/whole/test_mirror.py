"""What tests of networks compute, ranks compute as well: see `mirror`."""

import json
import os

from children import run_python
from places import ROOT, SUPPORT, TESTS


def test_graphs_that_tests_made_for_one_process_are_those_of_ranks(tmp_path):
    subjects = "graphs", "pool", "conv"
    found = mirrored([TESTS / f"behaviour/test_nn_{s}.py" for s in subjects], tmp_path)
    assert not found["wrong"]
    counts = found["counts"]
    assert counts["compared"] >= 160
    refused = {why: n for why, n in counts.items() if why.startswith("refused")}
    assert sum(refused.values()) <= counts["compared"] / 50, refused


def test_what_differs_is_noted(tmp_path):
    script = tmp_path / "test_differs.py"
    script.write_text(
        "import numpy as np, pytensor.tensor as pt\n"
        "from networks import compiled\n"
        "from synk.ops import local\n"
        "def test_it():\n"
        "    x = pt.dvector('x')\n"
        "    f = compiled([x], [x.sum(), local(x.sum()) * x.mean()])\n"
        "    assert f(np.arange(4.0))[0] == 6\n"
    )
    found = mirrored([script], tmp_path)
    assert found["counts"] == {"compared": 1}
    assert len(found["wrong"]) == 1
    assert "test_it: output 1" in found["wrong"][0]


def mirrored(files: list, tmp_path) -> dict:
    """Run tests as the plugin has it, and return what it has found."""
    out = tmp_path / "mirrored.json"
    paths = os.pathsep.join([str(ROOT), str(SUPPORT), os.environ.get("PYTHONPATH", "")])
    options = ["-q", "-n0", "-p", "mirror", "-p", "no:cacheprovider", "-W", "ignore"]
    options += ["-k", "not jax"]
    run_python(
        *("-m", "pytest", *options, "-c", ROOT / "pyproject.toml", *files),
        PYTHONPATH=paths,
        MIRROR_OUT=str(out),
        SYNK_TEST_NN="ranks",
    )
    return json.loads(out.read_text())
