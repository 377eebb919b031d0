"""demos/resnet50.py as a user runs it, on a folder of images."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from coloured import make_folder
from test_demos import QUICK as QUICK_OPS
from test_resnet50_images import DEMOS, ends

SMALL = ("--image-size", "16", "--width", "4", "--blocks", "1", "--loaders", "2")
QUICK = ("--mode", "FAST_COMPILE")


@pytest.fixture
def folder(tmp_path):
    """Make 11 red and 11 blue images, of which 1 each is for validation."""
    make_folder(tmp_path / "images", 24, 20)
    return tmp_path


def start(folder, *options):
    """Start the demo in a process group of its own."""
    command = [sys.executable, DEMOS / "resnet50.py", *SMALL, "--images", "images"]
    return subprocess.Popen(
        [*command, *map(str, options)],
        cwd=folder,
        env={**os.environ, **QUICK_OPS, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(folder, *options):
    """Run the demo; return how it ended, and what it wrote to either stream."""
    with start(folder, *options) as program:
        output, error = program.communicate(timeout=240)
    assert ends(program.pid)
    return program.returncode, output, error


@pytest.mark.slow
@pytest.mark.parametrize("mode", [(), QUICK], ids=["JAX", "PyTensor"])
def test_two_ranks_train_on_a_folder_of_images(folder, mode):
    if not mode:
        pytest.importorskip("jax", reason="JAX, of the extra synk[jax], is missing")
    options = "--ranks", 2, "--batch", 10, "--warm-up", 0, *mode
    code, output, error = run(folder, *options, "--epochs", 1)
    assert code == 0, error
    first, epoch, final = output.splitlines()
    assert first == ("2 ranks: 998 parameters, 2 classes, 20 images and 2 to validate")
    assert re.match(r"epoch   1: training loss \d.*, images/s [\d.]+$", epoch)
    assert "validation top-5 1," in epoch
    assert re.fullmatch(r"final: training loss \d\.\d{6}, plot: resnet50\.png", final)
    assert (folder / "resnet50.png").read_bytes().startswith(b"\x89PNG")
    with np.load(folder / "resnet50.npz") as file:
        assert file["history"].shape == (1, 7)
    assert "SplitWarning" not in error
    if not mode:
        return  # what follows computes nothing, in any mode
    # Nothing is left to do.
    code, output, error = run(folder, *options, "--epochs", 1, "--resume")
    assert (code, output.splitlines()) == (0, [first, final]), error


def test_a_damaged_image_ends_the_run_and_is_named(folder):
    (folder / "images" / "blue" / "07.png").write_bytes(b"no image")
    code, _, error = run(folder, "--ranks", 2, "--batch", 20, *QUICK)
    assert code == 1
    assert "ImageError: images/blue/07.png: no image that can be read" in error
    assert "Traceback" not in error


def test_an_interrupt_ends_the_run_and_all_processes(folder):
    with start(folder, "--ranks", 2, "--batch", 6, *QUICK) as program:
        assert program.stdout.readline().startswith("2 ranks: ")
        os.killpg(program.pid, signal.SIGINT)  # as a terminal does
        _, error = program.communicate(timeout=60)
    assert program.returncode == 1, error
    assert "interrupted; --resume goes on from the last checkpoint" in error
    assert "Traceback" not in error
    assert ends(program.pid)


def test_what_cannot_be_resumed_is_refused(folder):
    code, _, error = run(folder, "--resume")
    assert code == 1
    assert "--resume: there is no resnet50.npz" in error
