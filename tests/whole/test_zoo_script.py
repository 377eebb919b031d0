"""demos/zoo.py as a user runs it: what rows it gets, and what its options mean."""

# ruff: noqa: F811

from __future__ import annotations

import re

import numpy as np
import pytest
from coloured import make_folder
from PIL import Image
from test_demos import QUICK, run
from test_zoo import DEMOS, arguments, zoo  # noqa: F401  a fixture

import synk

# -- rows ----------------------------------------------------------------------------


def test_images_come_in_parts_that_have_each_row_once(zoo):
    args = arguments(zoo, "cifar10", "--rows", 30, "--hold", 9)
    rows = zoo.open_data(args)  # of 4 and 4 rows, and at last 2 and 4
    parts = list(rows.training(0))
    assert [len(x) for x, _ in parts] == [8, 8, 8, 6]
    assert rows.parts == len(parts)
    whole = zoo.open_data(arguments(zoo, "cifar10", "--rows", 30))
    (together,) = whole.training(0)
    for number, array in enumerate(together):
        np.testing.assert_array_equal(
            np.concatenate([part[number] for part in parts]), array
        )
    assert sum(len(x) for x, _ in rows.validation()) == rows.held_out == 3


def test_noise_is_other_noise_in_each_epoch_and_the_same_in_each_run(zoo):
    rows = zoo.open_data(arguments(zoo, "lsgan"))
    ((x, first),), ((again, second),) = rows.training(0), rows.training(1)
    np.testing.assert_array_equal(x, again)
    assert x.shape == (10, 1, 8, 8)
    assert (x.dtype, x.max()) == ("uint8", 240)  # 16 shades, of which 15 is most
    assert first.shape == second.shape == (10, 100)
    assert np.abs(first - second).max() > 0.5
    ((_, third),) = zoo.open_data(arguments(zoo, "lsgan")).training(0)
    np.testing.assert_array_equal(first, third)


def test_so_many_rows_of_text_are_trained_on(zoo):
    for n in (10, 11, 32, 100):
        rows = zoo.open_data(zoo.parse_arguments(["lstm", "--rows", str(n)]))
        ((table,),) = rows.training(0)
        assert (len(table), rows.rows) == (n, n)
        assert table.shape[1] == 65


# -- the command line ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("vgg16 --every 3", "--every and --order are for rules"),
        ("vgg16 --rule local --order free", "order must be 'together', got 'free'"),
        ("googlenet --image-size 64", "googlenet takes images of 80 pixels at least"),
        ("wgan --image-size 30", "images of a size in fours, got 30"),
        ("wgan --image-size 12", "digits are of 28 pixels, or of 8"),
        ("alexnet --depth 10", "--depth is not for alexnet"),
        ("cifar10 --critic-steps 2", "--critic-steps is not for cifar10"),
        ("lstm --images DIR", "--images is not for lstm"),
        ("lstm --samples a.png", "--samples is not for lstm"),
        ("lsgan --decay 1", "--decay is not for lsgan"),
        ("vgg16 --images DIR --rows 5", "--rows and --classes are for data that are"),
        ("vgg16 --loaders 2", "--loaders is for --images"),
        ("cifar10 --rule easgd --sync-bn", "--sync-bn is for exact training"),
        ("lstm --resume", "--resume needs the --checkpoint of an earlier run"),
    ],
)
def test_what_has_no_meaning_is_refused(zoo, options, message, capsys):
    with pytest.raises(SystemExit) as caught:
        zoo.parse_arguments(options.split())
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("alexnet", {0: 0.01, 19: 0.01, 20: 1e-3, 69: 1e-5}),
        ("googlenet", {7: 0.005, 8: 0.0048, 16: 0.004608}),
        ("resnet50 --batch 256", {0: 0.1, 30: 0.01}),
        ("wide_resnet --falls 5", {4: 0.1, 5: 0.02}),
        ("lsgan --epochs 10", {0: 1e-4, 5: 1e-4, 6: 0.8e-4, 9: 0.2e-4}),
    ],
)
def test_rates_are_those_of_the_recipes(zoo, options, expected):
    schedule = zoo.schedule_of(zoo.parse_arguments(options.split()))
    assert {k: schedule(k) for k in expected} == pytest.approx(expected)


def test_each_rule_can_be_had(zoo):
    def made(*options: str):
        return zoo.rule_of(zoo.parse_arguments(["cifar10", *options]), ranks=4)

    assert made() is None
    for name in zoo.RULES:
        assert isinstance(made("--rule", name), synk.rules.Rule)
    rule = made("--rule", "easgd", "--every", "3", "--order", "turns")
    assert (type(rule), rule.every, rule.order) == (synk.rules.EASGD, 3, "turns")
    assert made("--rule", "gossip", "--every", "20").p == 0.05
    # What takes a worker's way for a gradient has workers without momentum.
    assert zoo.parse_arguments(["cifar10", "--rule", "downpour"]).momentum == 0
    assert zoo.parse_arguments(["cifar10", "--rule", "diloco"]).momentum == 0.9


def test_it_trains_on_a_folder_of_images(tmp_path):
    make_folder(tmp_path / "images", 28, 30)
    small = "--width 0.06 --batch 10 --epochs 2 --ranks 2 --mode FAST_COMPILE"
    output = run(
        *(DEMOS / "zoo.py", "cifar10", "--rule", "easgd", "--every", 2),
        *("--images", "images", "--loaders", 1, *small.split()),
        folder=tmp_path,
        **QUICK,
    )
    first, *epochs, final = output.splitlines()
    assert first == (
        "cifar10 by EASGD(every=2, order='together', beta=0.9), 2 ranks: 1,710"
        " parameters, 20 rows to train on and 2 to validate"
    )
    assert [line[:10] for line in epochs] == ["epoch   1:", "epoch   2:"]
    numbers = r"training loss \S+, validation loss \S+, validation top-1 \S+"
    assert all(re.search(numbers, line) for line in epochs)
    assert re.fullmatch(r"final: training loss \d\.\d{6}", final)


@pytest.mark.slow
def test_a_gan_shows_what_it_draws(tmp_path):
    small = "--image-size 8 --rows 64 --epochs 1 --ranks 2 --mode FAST_COMPILE"
    output = run(
        *(DEMOS / "zoo.py", "lsgan", *small.split(), "--width", 0.1),
        *("--samples", "made.png"),
        folder=tmp_path,
        **QUICK,
    )
    assert "samples: made.png" in output
    pixels = np.asarray(Image.open(tmp_path / "made.png"))
    assert pixels.shape == (6 * 8, 7 * 8)
    assert pixels.std() > 0
