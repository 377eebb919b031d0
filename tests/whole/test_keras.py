"""Keras 2 on the Theano backend: models train and predict as on Theano itself.

A model is a program of its own (``keras_models.py``): Keras needs `keras_today` first,
which changes h5py and NumPy.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from places import DOCS, ROOT, SUPPORT


def _version() -> str:
    try:
        return importlib.metadata.version("keras")
    except importlib.metadata.PackageNotFoundError:
        return ""


pytestmark = pytest.mark.skipif(
    not _version().startswith("2."), reason="needs Keras 2 (pip install keras==2.3.1)"
)

# Losses, evaluations and predictions of Keras 2.3.1 on Theano 1.0.5, with Python 3.8,
# NumPy 1.19 and its OpenBLAS:
#     THEANO_FLAGS=floatX=float64,optimizer=fast_compile \
#         python3.8 tests/support/keras_models.py mlp cnn lstm stateful functional
OF_THEANO = json.loads((SUPPORT / "keras_values.json").read_text())


def run(*arguments: str | Path, tmp_path: Path) -> str:
    """Run Python; what it has printed."""
    places = [str(ROOT), str(DOCS / "keras"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        cwd=tmp_path,
        env={
            **os.environ,
            "HOME": str(tmp_path),  # Keras writes its settings there
            "KERAS_BACKEND": "theano",
            "PYTHONPATH": os.pathsep.join(filter(None, places)),
            "THEANO_FLAGS": "floatX=float64,mode=FAST_COMPILE",
            "PYTENSOR_FLAGS": "cxx=",
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize(
    ("before", "after", "models"),
    [
        (["-m", "synk"], [], ["mlp", "cnn", "stateful"]),
        pytest.param(
            *([], ["--import-synk"], ["lstm", "functional"]), marks=pytest.mark.slow
        ),
    ],
    ids=["python -m synk", "import synk"],
)
def test_models_train_and_predict_as_on_theano(before, after, models, tmp_path):
    script = SUPPORT / "keras_models.py"
    lines = run(*before, script, *after, *models, tmp_path=tmp_path).splitlines()
    found = dict(json.loads(line) for line in lines)
    assert list(found) == models
    for name in models:
        np.testing.assert_allclose(
            found[name], OF_THEANO[name], rtol=1e-9, atol=1e-12, err_msg=name
        )


def test_the_values_of_the_first_model_are_those_of_a_descent_by_hand():
    random = np.random.RandomState(1)
    weights = [0.5 * random.normal(size=shape) for shape in [(4, 5), 5, (5, 3), 3]]
    random = np.random.RandomState(1)
    kinds, x = random.randint(0, 3, 20), random.normal(size=(20, 4))
    y, velocity, losses = np.eye(3)[kinds], [0.0] * 4, []
    for _ in range(2):
        total = 0.0
        for rows in (slice(start, start + 8) for start in range(0, 20, 8)):
            hidden, p = _forward(x[rows], *weights)
            total -= np.log(p[y[rows] == 1]).sum()
            d = (p - y[rows]) / len(p)
            dh = (d @ weights[2].T) * (hidden > 0)
            gradients = [x[rows].T @ dh, dh.sum(0), hidden.T @ d, d.sum(0)]
            velocity = [
                0.9 * v - 0.1 * g for v, g in zip(velocity, gradients, strict=True)
            ]
            weights = [w + v for w, v in zip(weights, velocity, strict=True)]
        losses.append(total / 20)
    _, p = _forward(x, *weights)
    evaluated = [-np.log(p[y == 1]).mean(), (p.argmax(1) == kinds).mean()]
    # Before them are the accuracies of the two epochs, each of a batch's own weights.
    np.testing.assert_allclose(
        OF_THEANO["mlp"][2:], [*losses, *evaluated, *p.ravel()[:6]], rtol=1e-6
    )


def _forward(x: np.ndarray, *weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    w, b, v, c = weights
    hidden = np.maximum(x @ w + b, 0)
    e = np.exp(hidden @ v + c)
    return hidden, e / e.sum(1, keepdims=True)


def test_the_example_of_the_page_runs_and_prints_what_it_shows(tmp_path):
    page = (DOCS / "keras.rst").read_text()
    shown = page.partition("It prints::\n\n")[2].partition("\n\n")[0]
    printed = run(DOCS / "keras" / "circles.py", tmp_path=tmp_path)
    assert printed.strip() == shown.strip() != ""
    assert (tmp_path / "circles.h5").exists()
