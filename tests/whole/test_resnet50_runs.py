"""demos/resnet50.py as a user runs it, on folders of images, and demos/images.py."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest
from places import DEMOS
from processes import wait_until
from samples import make_folder

FLAGS = os.environ.get("PYTENSOR_FLAGS", "")
QUICK_OPS = {"PYTENSOR_FLAGS": f"{FLAGS},mode=FAST_COMPILE,cxx=".lstrip(",")}


@pytest.fixture
def images(import_from, monkeypatch):
    """Import the demo; it decodes in threads, which need no time to start."""
    import_from(DEMOS)
    module = __import__("images")
    monkeypatch.setattr(
        module, "ProcessPoolExecutor", lambda n, *_, **__: ThreadPoolExecutor(n)
    )
    return module


@pytest.fixture
def folder(tmp_path):
    """Make 11 red and 11 blue images, of which 1 each is for validation."""
    made = tmp_path / "images"
    make_folder(made, 24, 20)
    (made / "red" / "notes.txt").write_text("no image")
    return made


def test_classes_are_the_folders_and_some_images_validate(images, folder):
    data = images.Folder(folder, 8, seed=0, processes=2)
    assert data.names == ["blue", "red"]
    assert (data.classes, data.n_training, data.n_validation) == (2, 20, 2)
    batches = list(data.training(0, 8))
    assert [x.shape for x, _ in batches] == [(n, 3, 8, 8) for n in (8, 8, 4)]
    x, y = map(np.concatenate, zip(*batches, strict=True))
    assert (x.dtype, y.dtype) == (np.uint8, np.int32)
    assert sorted(y) == [0] * 10 + [1] * 10
    brightest = x.mean(axis=(2, 3)).argmax(axis=1)  # red, green or blue
    np.testing.assert_array_equal(brightest, np.where(y == 0, 2, 0))
    ((x, y),) = data.validation(10)
    assert (len(x), list(y)) == (2, [0, 1])
    data.close()


# -- processes -----------------------------------------------------------------------


def alive(group: int) -> int:
    """Count a group's processes, but zombies."""
    found = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            is_one = os.getpgid(process.pid) == group
            found += is_one and process.status() != "zombie"
    return found


def decoding(pid: int) -> int:
    """Count the processes that a demo's server has forked, and that have begun.

    Each has a second thread by then. Before that it still reads what it is to do,
    which the end of the demo cuts off: Python's own code writes a traceback then.
    """
    found = 0
    for server in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "forkserver" in " ".join(server.cmdline()):
                found += sum(one.num_threads() > 1 for one in server.children())
    return found


def check_ends(program: subprocess.Popen) -> None:
    wait_until(lambda: not alive(program.pid), 20, "end of its processes")


# -- the demo as a program

SMALL = ("--image-size", "16", "--width", "4", "--blocks", "1", "--loaders", "2")
SMALL += ("--ranks", "2")
QUICK = ("--mode", "FAST_COMPILE")


@contextlib.contextmanager
def started(folder, *options):
    """Start the demo on two ranks, in a process group of its own."""
    command = [sys.executable, DEMOS / "resnet50.py", *SMALL, "--images", "images"]
    with subprocess.Popen(
        [*command, *map(str, options)],
        cwd=folder.parent,
        env={**os.environ, **QUICK_OPS},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        try:
            yield program
        finally:
            program.kill()  # where the test has failed: it would be waited for


def run(folder, *options):
    """Run the demo; return how it ended, and what it wrote to either stream."""
    with started(folder, *options) as program:
        output, error = program.communicate(timeout=240)
    check_ends(program)
    return program.returncode, output, error


def test_two_ranks_train_on_a_folder_of_images(folder):
    how = "--batch", 10, "--warm-up", 0, "--epochs", 1, *QUICK
    code, output, error = run(folder, *how)
    assert code == 0, error
    first, epoch, final = output.splitlines()
    assert first == ("2 ranks: 998 parameters, 2 classes, 20 images and 2 to validate")
    assert re.match(r"epoch   1: training loss \d.*, images/s [\d.]+$", epoch)
    assert "validation top-5 1," in epoch
    assert re.fullmatch(r"final: training loss \d\.\d{6}, plot: resnet50\.png", final)
    assert (folder.parent / "resnet50.png").read_bytes().startswith(b"\x89PNG")
    with np.load(folder.parent / "resnet50.npz") as file:
        assert file["history"].shape == (1, 7)
    assert "SplitWarning" not in error


def test_what_ends_a_run_is_named(folder):
    code, _, error = run(folder, "--resume")
    assert code == 1
    assert "--resume: there is no resnet50.npz" in error
    path = folder / "blue" / "07.png"
    path.write_bytes(path.read_bytes()[:-700])
    code, _, error = run(folder, "--batch", 20, *QUICK)
    assert code == 1
    assert "ImageError: images/blue/07.png: no image that can be read" in error
    assert "Traceback" not in error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_an_interrupted_or_killed_program(folder, number):
    with started(folder, "--batch", 6, *QUICK) as program:
        assert program.stdout.readline().startswith("2 ranks: ")
        wait_until(lambda: decoding(program.pid) > 1, 60, "two that decode")
        if number == signal.SIGINT:
            os.killpg(program.pid, number)  # as a terminal does
        else:
            os.kill(program.pid, number)
        _, error = program.communicate(timeout=60)
    if number == signal.SIGINT:
        assert program.returncode == 1, error
        assert "interrupted; --resume goes on from the last checkpoint" in error
    else:
        assert program.returncode == -number
    assert "Traceback" not in error
    check_ends(program)
