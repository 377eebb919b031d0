"""demos/lstm.py: every number of ranks gives the same numbers, and it can write."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest
from children import in_a_child
from test_demos import DEMOS, QUICK, here, image_of, run, run_here  # noqa: F401

SMALL = "--letters", 400, "--length", 8, "--units", 6, "--epochs", 2
MODE = "--mode", "FAST_COMPILE"


pytestmark = pytest.mark.usefixtures("here")


@functools.cache
def train(*options: object) -> str:
    """Run lstm.py on 49 rows, once for each set of options; what it printed."""
    # 44 rows to train on, in steps of 15, 15 and 14
    steps = "--batch-size", 17, "--epochs", 1, "--sample", 0
    return run_here("lstm", *SMALL, *steps, *options)


def bits(output: str) -> float:
    return float(re.fullmatch(r"final: (\S+) bits per letter", last(output))[1])


def last(output: str) -> str:
    return output.splitlines()[-1]


@pytest.mark.slow
def test_ranks_end_at_the_bits_of_the_serial_run():
    # Clipping at 0.01 changes nearly every gradient: see the demo's first lines.
    options = *MODE, "--clip", 0.01, "--rate", 0.02
    serial, parallel = train("--serial", *options), train("--ranks", 3, *options)
    assert bits(parallel) == pytest.approx(bits(serial), rel=1e-6)
    assert "3 ranks: " in parallel
    assert bits(serial) != pytest.approx(bits(train("--serial", *MODE)), rel=1e-6)


@pytest.mark.slow
@in_a_child
def test_jax_mode_gives_the_same_bits():
    jax = train("--ranks", 2, "--mode", "JAX")
    assert bits(jax) == pytest.approx(bits(train("--serial", *MODE)), rel=1e-6)


@pytest.mark.slow
def test_it_reports_draws_and_writes(tmp_path):
    options = "--serial", "--sample", 30, "--norm", 0.5, "--plot", "curves.png"
    command = DEMOS / "lstm.py", *SMALL, *MODE, *options
    output = run(*command, folder=tmp_path, **QUICK)
    epochs = re.findall(
        r"^epoch +(\d): train bits per letter (\S+) perplexity (\S+), validation bits"
        r" per letter (\S+) perplexity (\S+), [\d,]+ letters/s$",
        output,
        re.MULTILINE,
    )
    assert [epoch[0] for epoch in epochs] == ["1", "2"]
    values = np.array(epochs, float)
    np.testing.assert_allclose(2 ** values[:, 1], values[:, 2], rtol=1e-3)
    np.testing.assert_allclose(2 ** values[:, 3], values[:, 4], rtol=1e-3)
    assert values[1, 1] < values[0, 1]
    assert bits(output) == pytest.approx(values[1, 3], abs=1e-4)
    sample = re.search(r"^sample:\n(.*)\nfinal: ", output, re.DOTALL | re.MULTILINE)
    assert len(sample[1]) == 30
    assert image_of(tmp_path / "curves.png").std() > 0


def test_rows_are_the_text_and_overlap_by_the_letter_to_foretell(import_from):
    import_from(DEMOS)
    import lstm

    text = lstm.read(length=10, letters=None)
    assert text.table.dtype == "uint8"
    np.testing.assert_array_equal(text.table[:-1, -1], text.table[1:, 0])
    letters = "".join(text.alphabet[text.table[:, :-1]].ravel())
    assert len(letters) > 400_000
    assert 'The "while" statement' in letters
    part = lstm.read(length=10, letters=111)
    assert part.table.shape == (11, 11)
    assert (part.rows["train"].stop, part.rows["validation"].start) == (9, 9)
    with pytest.raises(SystemExit, match="50 letters are too few for 10 rows of 10"):
        lstm.read(length=10, letters=50)
