"""demos/resnet50.py as a user runs it, on folders of images, and demos/images.py."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image
from places import DEMOS
from samples import make_folder
from test_demos import QUICK as QUICK_OPS


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
    """Make 12 images each of cats and dogs, of different sizes."""
    random = np.random.default_rng(0)
    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
        for i in range(12):
            shape = (20 + i, 30 - i, 3)
            pixels = random.integers(0, 256, shape, dtype="uint8")
            Image.fromarray(pixels).save(tmp_path / name / f"{i:02}.png")
    (tmp_path / "cats" / "notes.txt").write_text("no image")
    return tmp_path


def save(path: Path, pixels: np.ndarray) -> str:
    Image.fromarray(pixels).save(path)
    return str(path)


def test_validation_sees_the_centre(images, tmp_path):
    pixels = np.zeros((32, 64, 3), "uint8")
    pixels[:, 18:46] = (10, 20, 30)  # 28 of 32 rows, and as many columns
    pixels[:2] = pixels[-2:] = 255
    got = images.decode(save(tmp_path / "a.png", pixels), 28, None)
    assert got.shape == (3, 28, 28)
    assert got.dtype == np.uint8
    for channel, value in zip(got, (10, 20, 30), strict=True):
        np.testing.assert_array_equal(channel, value)


def test_grey_and_transparent_images_become_coloured(images, tmp_path):
    for name, shape in ("grey.png", (9, 9)), ("alpha.png", (9, 9, 4)):
        path = save(tmp_path / name, np.full(shape, 7, "uint8"))
        np.testing.assert_array_equal(images.decode(path, 4, None), 7)


def test_parts_lie_in_the_image_and_vary(images):
    random = np.random.default_rng(0)
    width, height = 50, 30
    parts = np.array([images.random_part(width, height, random) for _ in range(500)])
    left, top, right, bottom = parts.T
    assert (left >= 0).all()
    assert (top >= 0).all()
    assert (right <= width).all()
    assert (bottom <= height).all()
    areas = (right - left) * (bottom - top) / (width * height)
    assert areas.max() > 0.85
    assert 0.079 < areas.min() < 0.12
    ratios = (right - left) / (bottom - top)
    small = areas < 0.3  # the sides of larger ones are cut
    assert 3 / 4 - 1e-9 < ratios[small].min() < 0.8
    assert 1.25 < ratios[small].max() < 4 / 3 + 1e-9


def test_half_of_the_parts_are_mirrored(images, tmp_path):
    pixels = np.tile(np.arange(0, 250, 10, dtype="uint8")[:, None], (25, 1, 3))
    path = save(tmp_path / "ramp.png", pixels.reshape(25, 25, 3))
    parts = [images.decode(path, 8, np.random.default_rng(i)) for i in range(60)]
    falling = sum(bool(part[0, 0, 0] > part[0, 0, -1]) for part in parts)
    assert 15 < falling < 45


def test_classes_are_the_folders_and_some_images_validate(images, folder):
    data = images.Folder(folder, 8, seed=0, processes=2)
    assert data.names == ["cats", "dogs"]
    assert (data.classes, data.n_training, data.n_validation) == (2, 20, 4)
    batches = list(data.training(0, 8))
    assert [len(x) for x, _ in batches] == [8, 8, 4]
    assert all(x.shape[1:] == (3, 8, 8) and x.dtype == np.uint8 for x, _ in batches)
    labels = np.concatenate([y for _, y in batches])
    assert labels.dtype == np.int32
    assert sorted(labels) == [0] * 10 + [1] * 10
    (x, y), *rest = data.validation(10)
    assert (len(x), list(y), rest) == (4, [0, 0, 1, 1], [])
    data.close()


def test_an_epoch_follows_from_seed_and_number(images, folder):
    def epoch(number, seed=0, processes=2):
        data = images.Folder(folder, 8, seed, processes)
        found = [
            np.concatenate(part) for part in zip(*data.training(number, 7), strict=True)
        ]
        data.close()
        return found

    first = epoch(3)
    for got, expected in zip(epoch(3, processes=3), first, strict=True):
        np.testing.assert_array_equal(got, expected)
    for other in epoch(4), epoch(3, seed=1):
        assert (other[1] != first[1]).any()
        assert (other[0] != first[0]).any()


def test_made_up_images_show_their_class(images):
    data = images.MadeUp(3, 16, n_training=40, n_validation=10, seed=0)
    batches = list(data.training(0, 16))
    assert [len(x) for x, _ in batches] == [16, 16, 8]
    x, y = map(np.concatenate, zip(*batches, strict=True))
    patterns = np.array([x[y == label].mean(axis=0) for label in range(3)])
    held_out, right = next(data.validation(10))
    away = np.abs(held_out[:, None] - patterns).mean(axis=(2, 3, 4))
    np.testing.assert_array_equal(away.argmin(axis=1), right)
    again = next(data.training(0, 16))
    np.testing.assert_array_equal(again[0], batches[0][0])
    other = next(data.training(1, 16))
    assert (other[1] != again[1]).any()


def test_folders_without_classes_or_images_are_refused(images, tmp_path):
    with pytest.raises(ValueError, match="no folders"):
        images.Folder(tmp_path, 8, 0, 1)
    (tmp_path / "cats").mkdir()
    with pytest.raises(ValueError, match="cats: a class needs 2 images, found 0"):
        images.Folder(tmp_path, 8, 0, 1)


@pytest.mark.parametrize("content", [b"", b"no image", "cut short"])
def test_a_damaged_image_is_named(images, folder, content):
    path = folder / "dogs" / "07.png"
    if content == "cut short":
        content = path.read_bytes()[:-700]
    path.write_bytes(content)
    data = images.Folder(folder, 8, seed=0, processes=2)
    with pytest.raises(images.ImageError, match=r"dogs/07\.png: no image that can"):
        list(data.training(0, 8))
    data.close()


def test_no_more_is_decoded_ahead_than_is_bounded(images):
    loader = images.Loader(2)
    taken, done = [], threading.Semaphore(0)

    def jobs():
        for i in range(50):
            taken.append(i)
            yield i

    def work(i):
        done.release()
        return i * i

    results = loader.map(work, jobs())
    for i in range(50):
        assert next(results) == i * i
        assert len(taken) <= i + 4
    assert list(results) == []
    stopped = loader.map(work, iter(range(50)))
    next(stopped)
    stopped.close()
    loader.close()


# -- processes -----------------------------------------------------------------------

SCRIPT = """
import sys
sys.path.insert(0, {demos!r})
import images

if __name__ == "__main__":
    data = images.Folder({folder!r}, 8, 0, 2)
    try:
        print(len(list(data.validation(2))), flush=True)
        for i in range({epochs}):
            for x, y in data.training(i, 2):
                pass
        print("all epochs", flush=True)
    finally:
        data.close()
"""


@contextlib.contextmanager
def start(tmp_path, folder, epochs):
    """Run a program, in a process group of its own, that reads images."""
    script = tmp_path / "script.py"
    script.write_text(
        SCRIPT.format(demos=str(DEMOS), folder=str(folder), epochs=epochs)
    )
    with subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        try:
            yield program
        finally:
            program.kill()  # where the test has failed: it would be waited for


def ends(group: int) -> bool:
    """Wait until no process of a group is left; say whether that was so in time."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        left = [p for p in psutil.process_iter() if _group(p.pid) == group]
        if not [p for p in left if p.status() != psutil.STATUS_ZOMBIE]:
            return True
        time.sleep(0.02)
    return False


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_an_interrupted_or_killed_program(folder, tmp_path, number):
    with start(tmp_path, folder, 10**6) as program:
        assert program.stdout.readline() == "2\n"
        if number == signal.SIGINT:
            os.killpg(program.pid, number)  # as a terminal does
        else:
            os.kill(program.pid, number)
        _, error = program.communicate(timeout=60)
    assert program.returncode == -number, error
    assert ("KeyboardInterrupt" in error) == (number == signal.SIGINT)
    assert error.count("Traceback") <= 1
    assert ends(program.pid)


MASK = """
import functools, signal, sys
sys.path.insert(0, {demos!r})
import images

if __name__ == "__main__":
    look = functools.partial(signal.pthread_sigmask, signal.SIG_BLOCK)
    before = look([])
    loader = images.Loader(1)
    (of_process,) = loader.map(look, [[]])
    loader.close()
    assert look([]) == before, "the program is to be interrupted"
    print(*of_process)
"""


def test_processes_have_ctrl_c_blocked_before_they_run_anything(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(MASK.format(demos=str(DEMOS)))
    command = [sys.executable, script]
    printed = subprocess.check_output(command, timeout=100, text=True)
    assert printed == f"{int(signal.SIGINT)}\n"


# -- the demo as a program

SMALL = ("--image-size", "16", "--width", "4", "--blocks", "1", "--loaders", "2")
QUICK = ("--mode", "FAST_COMPILE")


@pytest.fixture
def coloured(tmp_path):
    """Make 11 red and 11 blue images, of which 1 each is for validation."""
    make_folder(tmp_path / "images", 24, 20)
    return tmp_path


def start_demo(folder, *options):
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
    with start_demo(folder, *options) as program:
        output, error = program.communicate(timeout=240)
    assert ends(program.pid)
    return program.returncode, output, error


@pytest.mark.slow
def test_two_ranks_train_on_a_folder_of_images(coloured):
    pytest.importorskip("jax", reason="JAX, of the extra synk[jax], is missing")
    options = "--ranks", 2, "--batch", 10, "--warm-up", 0
    code, output, error = run(coloured, *options, "--epochs", 1)
    assert code == 0, error
    first, epoch, final = output.splitlines()
    assert first == ("2 ranks: 998 parameters, 2 classes, 20 images and 2 to validate")
    assert re.match(r"epoch   1: training loss \d.*, images/s [\d.]+$", epoch)
    assert "validation top-5 1," in epoch
    assert re.fullmatch(r"final: training loss \d\.\d{6}, plot: resnet50\.png", final)
    assert (coloured / "resnet50.png").read_bytes().startswith(b"\x89PNG")
    with np.load(coloured / "resnet50.npz") as file:
        assert file["history"].shape == (1, 7)
    assert "SplitWarning" not in error
    # Nothing is left to do.
    code, output, error = run(coloured, *options, "--epochs", 1, "--resume")
    assert (code, output.splitlines()) == (0, [first, final]), error


def test_a_damaged_image_ends_the_run_and_is_named(coloured):
    (coloured / "images" / "blue" / "07.png").write_bytes(b"no image")
    code, _, error = run(coloured, "--ranks", 2, "--batch", 20, *QUICK)
    assert code == 1
    assert "ImageError: images/blue/07.png: no image that can be read" in error
    assert "Traceback" not in error


def test_an_interrupt_ends_the_run_and_all_processes(coloured):
    with start_demo(coloured, "--ranks", 2, "--batch", 6, *QUICK) as program:
        assert program.stdout.readline().startswith("2 ranks: ")
        os.killpg(program.pid, signal.SIGINT)  # as a terminal does
        _, error = program.communicate(timeout=60)
    assert program.returncode == 1, error
    assert "interrupted; --resume goes on from the last checkpoint" in error
    assert "Traceback" not in error
    assert ends(program.pid)


def test_what_cannot_be_resumed_is_refused(coloured):
    code, _, error = run(coloured, "--resume")
    assert code == 1
    assert "--resume: there is no resnet50.npz" in error
