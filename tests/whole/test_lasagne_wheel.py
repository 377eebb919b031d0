"""Lasagne 0.2, of which there is no release, on ranks: BatchNorm and a GRU.

Where it is not installed, its wheel is looked for: in the environment variable
``SYNK_LASAGNE_WHEEL``, and in ``../shared/wheels`` beside the checkout. A wheel of pure
Python is imported as it is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT, SUPPORT

CHECKS = (
    "batch_normalisation",
    "gated_recurrent_units",
    "the_order_of_parameters",
    "layers_for_gpus",
)


def wheel() -> Path | None:
    """Return the wheel, or None if Lasagne 0.2 is installed; skip without either."""
    given = os.environ.get("SYNK_LASAGNE_WHEEL")
    if given:
        assert Path(given).is_file(), f"SYNK_LASAGNE_WHEEL={given}: no such file"
        return Path(given)
    found = sorted(ROOT.parent.glob("shared/wheels/lasagne-0.2*.whl"))
    if found:
        return found[-1]
    if hasattr(pytest.importorskip("lasagne.layers"), "BatchNormLayer"):
        return None
    pytest.skip("Lasagne 0.2 is not here; SYNK_LASAGNE_WHEEL says where its wheel is")


@pytest.mark.slow
def test_networks_train_on_two_ranks_to_the_serial_numbers():
    path = wheel()
    before = [] if path is None else [str(path)]
    done = subprocess.run(
        [sys.executable, "-W", "ignore::SyntaxWarning", SUPPORT / "lasagne_newest.py"],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [*before, *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
            # Loops and other graphs in graphs are compiled for the default mode.
            "PYTENSOR_FLAGS": "mode=FAST_COMPILE,cxx=",
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.stdout.split() == list(CHECKS), done.stdout + done.stderr[-4000:]
