"""demos/zoo.py: networks as in their papers, exact and by rules; what options mean."""

import numpy as np
import pytensor
import pytest
import theano
from lasagne import layers as L
from places import DEMOS
from pytensor.compile.mode import Mode

import synk

MODE = Mode("py", optimizer=None)
"""Ops run in Python, in the graph as it is: rewriting it takes longer than training."""

SMALL = {
    "alexnet": "--image-size 67 --width 0.03",
    "resnet50": "--image-size 32 --width 0.06 --blocks 1",
    "wgan": "--image-size 8 --width 0.05 --first 1 --critic-steps 2",
    "lsgan": "--image-size 8 --width 0.05",
}

pytestmark = pytest.mark.usefixtures("scans_in_python")


@pytest.fixture
def zoo(import_from):
    """Import demos/zoo.py; numbers are float64."""
    import_from(DEMOS / "zoo_models")
    import_from(DEMOS)
    import zoo

    with pytensor.config.change_flags(floatX="float64"):
        yield zoo


def arguments(zoo, model: str, *options: object):
    """Return the arguments of a small run: 10 rows, in batches of 4, 4 and 2."""
    rows = "--rows 10 --batch 4 --floatX float64"
    given = [model, *SMALL[model].split(), *rows.split(), *map(str, options)]
    if zoo.ZOO[model].kind == "classes":
        given += ["--classes", "5"]
    args = zoo.parse_arguments(given)
    args.mode = MODE
    return args


# -- what the networks are -----------------------------------------------------------


def counted(build, monkeypatch) -> int:
    """Return how many parameters a network has, of which none gets a value."""
    sizes = {}

    def create_param(spec, shape, name=None):
        param = pytensor.shared(np.zeros((0,) * len(shape)), name)
        sizes[param] = int(np.prod(shape))
        return param

    monkeypatch.setattr("lasagne.utils.create_param", create_param)
    layers = [getattr(layer, "logits", layer) for layer in build()]
    return sum(sizes[p] for p in L.get_all_params(layers, trainable=True))


@pytest.mark.parametrize(
    ("model", "options", "expected"),
    [
        ("alexnet", {}, 60_965_224),
        ("vgg16", {}, 138_357_544),
        # 6,998,552 of the network itself, and of the heads after 512 and 528 channels.
        ("googlenet", {}, 6_998_552 + 3_188_840 + 3_190_888),
        ("resnet50", {}, 25_557_032),  # these two: torchvision's
        ("resnet152", {}, 60_192_808),
        # As convolutions and normalisations of the paper's table 1 add up.
        ("wide_resnet", {}, 36_479_194),
        ("wide_resnet", {"depth": 16, "widen": 8}, 10_961_370),
        ("cifar10", {}, 351_946),
    ],
)
def test_a_network_of_full_size_has_as_many_parameters(
    zoo, model, options, expected, monkeypatch
):
    recipe = zoo.ZOO[model]
    size = recipe.image_size, recipe.classes, 1.0
    found = counted(lambda: recipe.build(None, *size, **options), monkeypatch)
    assert found == expected
    if options:
        with pytest.raises(ValueError, match=r"depth must be 10, 16, .* got 29"):
            recipe.build(None, depth=29)


# -- training ------------------------------------------------------------------------


def plain_step(zoo, args):
    """Return a step by plain PyTensor, its model, and the rows of an epoch."""
    rows = zoo.open_data(args)
    model = zoo.build(args, rows, theano.shared(np.array(args.rate), "rate"))
    updates = list(model.updates.items())
    step = theano.function(model.inputs, model.loss, updates=updates, mode=MODE)
    (arrays,) = rows.training(0)
    return step, model, arrays


@pytest.fixture
def without_dropout(monkeypatch):
    """Have networks keep all: ranks draw from streams of their own."""
    monkeypatch.setattr(L.DropoutLayer, "get_output_for", lambda self, x, **_: x)


@pytest.mark.parametrize("model", ["alexnet", "wgan"])
def test_exact_steps_on_two_ranks_are_those_of_plain_pytensor(
    zoo, model, without_dropout
):
    args = arguments(zoo, model, "--sync-bn", "--seed", 3)
    step, serial, arrays = plain_step(zoo, args)
    batches = [slice(low, low + 4) for low in range(0, 10, 4)]
    losses = [float(step(*[array[batch] for array in arrays])) for batch in batches]
    with synk.session(2):
        training = zoo.Training(args, zoo.open_data(args))
        step, params = training.step, training.model.params
        training.trainer = synk.Trainer(step, params, shuffle=False)
        start = [p.get_value() for p in params]
        training.epoch()
        got = [[synk.get_value(i, var) for var in step.updated] for i in (0, 1)]
    np.testing.assert_allclose(training.trainer.history.losses, losses, rtol=1e-8)
    for of_rank in got:
        for value, var in zip(of_rank, serial.updates, strict=True):
            expected = var.get_value()
            scale = np.abs(expected).max()
            np.testing.assert_allclose(value, expected, atol=1e-8 * scale)
    moved = [np.ptp(p.get_value() - old) for p, old in zip(params, start, strict=True)]
    assert np.mean([each > 0 for each in moved]) > 0.9


@pytest.mark.parametrize("model", ["resnet50", "lsgan"])
def test_rules_train_networks_with_running_averages_and_two_at_once(zoo, model):
    args = arguments(zoo, model, "--rule", "local", "--every", 2)
    with synk.session(2):
        training = zoo.Training(args, zoo.open_data(args))
        step, params = training.step, training.model.params
        start = [p.get_value() for p in params]
        numbers = [*training.epoch().values()]
        # Another one goes on with the same function.
        training.trainer = synk.Trainer(step, params, synk.rules.EASGD(2))
        numbers += training.epoch().values()
        now = [p.get_value() for p in params]
        averages = [synk.get_value(i, training.model.averages) for i in (0, 1)]
    for value, other in zip(now, training.trainer.centre, strict=True):
        np.testing.assert_array_equal(value, other)
    assert np.isfinite(numbers).all()
    assert any((value != old).any() for value, old in zip(now, start, strict=True))
    np.testing.assert_equal(*averages)  # as validation needs them


# -- the command line ----------------------------------------------------------------


def test_what_has_no_meaning_is_refused(zoo, capsys):
    for options, message in (
        ("vgg16 --every 3", "--every and --order are for rules"),
        ("vgg16 --rule local --order free", "order must be 'together', got 'free'"),
        ("googlenet --image-size 64", "googlenet takes images of 80 pixels at least"),
        ("wgan --image-size 12", "digits are of 28 pixels, or of 8"),
        ("alexnet --depth 10", "--depth is not for alexnet"),
        ("vgg16 --images DIR --rows 5", "--rows and --classes are for data that are"),
        ("cifar10 --rule easgd --sync-bn", "--sync-bn is for exact training"),
        ("lstm --resume", "--resume needs the --checkpoint of an earlier run"),
    ):
        with pytest.raises(SystemExit) as caught:
            zoo.parse_arguments(options.split())
        assert caught.value.code == 2
        assert message in capsys.readouterr().err
