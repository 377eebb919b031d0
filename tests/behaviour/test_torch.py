"""Modules of torch as steps on ranks, beside the loop of torch in one process."""

import copy
import json
import sys
import warnings

import numpy as np
import pytest
from children import run_python
from places import DOCS, ROOT
from processes import kill

import synk

torch = pytest.importorskip("torch", reason="torch, of synk[torch], is missing")

import synk.torch  # noqa: E402

RNG = np.random.default_rng(0)
ROWS = 37
IMAGES = RNG.normal(size=(ROWS, 1, 8, 8))
LABELS = RNG.integers(0, 5, ROWS)


def network(kind="dense", dtype=torch.float64):
    torch.manual_seed(1)
    layers = {
        "dense": [torch.nn.Flatten(), torch.nn.Linear(64, 9), torch.nn.Tanh()],
        "convolution": [torch.nn.Conv2d(1, 1, 3), torch.nn.MaxPool2d(2)],
    }[kind]
    last = [torch.nn.Flatten(), torch.nn.Linear(9, 5)]
    return torch.nn.Sequential(*layers, *last).to(dtype)


LOSS = torch.nn.CrossEntropyLoss()


def sgd(module, lr=0.1):
    return torch.optim.SGD(module.parameters(), lr=lr)


def step_of(module, loss=LOSS, lr=0.1, **options):
    """Return a step of gradient descent on ranks."""
    return synk.torch.step(module, loss, sgd(module, lr), [IMAGES, LABELS], **options)


def by_torch(module, loss, optimizer, batches, scheduler=None, clip_norm=None):
    """Train in one process; return the losses."""
    losses = []
    dtype = next(module.parameters()).dtype
    for batch in batches:
        optimizer.zero_grad()
        images = torch.from_numpy(IMAGES[batch]).to(dtype)
        value = loss(module(images), torch.from_numpy(LABELS[batch]))
        value.backward()
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(module.parameters(), clip_norm)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(value.item())
    return losses


def assert_alike(found, expected, atol):
    ours, theirs = found.state_dict(), expected.state_dict()
    if "state" in ours:
        ours, theirs = (
            {(i, name): value for i in state for name, value in state[i].items()}
            for state in (ours["state"], theirs["state"])
        )
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        if value is None:
            assert theirs[name] is None
        else:
            torch.testing.assert_close(value, theirs[name], rtol=0, atol=atol)


OPTIMIZERS = {
    "SGD": lambda params: torch.optim.SGD(
        [{"params": params[:1], "lr": 0.05}, {"params": params[1:]}],
        lr=0.1,
        momentum=0.9,
        dampening=0.1,
    ),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.01),
}


@pytest.mark.parametrize(("kind", "name"), [("dense", "SGD"), ("convolution", "AdamW")])
def test_a_hundred_steps_are_those_of_one_process(kind, name):
    batches = [slice(0, 37), slice(5, 18)] * 50

    def made():
        module = network(kind)
        optimizer = OPTIMIZERS[name](list(module.parameters()))
        return module, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.9)

    module, optimizer, scheduler = made()
    expected = by_torch(module, LOSS, optimizer, batches, scheduler, 0.5)
    for ranks in (1, 3):
        with synk.session(ranks), warnings.catch_warnings():
            warnings.simplefilter("error")  # of schedulers, for one
            found, ours, schedule = made()
            given = IMAGES, LABELS
            step = synk.torch.step(found, LOSS, ours, given, clip_norm=0.5)
            if ranks > 1:  # it leaves numbers of its own in the optimizer
                schedule = torch.optim.lr_scheduler.StepLR(ours, 20, 0.9)
            losses = []
            for i, batch in enumerate(batches):
                made_so = {"batch": batch, "num_slices": 1 + i % 3}
                losses.append(float(step(*given, **made_so)))
                schedule.step()
            np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-10)
            assert_alike(found, module, 1e-10)
            assert_alike(ours, optimizer, 1e-10)
            assert ours.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


def many(params):
    return {
        "Adadelta": lambda: torch.optim.Adadelta(params, lr=1.0),
        "Adafactor": lambda: torch.optim.Adafactor(params, lr=0.01),
        "Adagrad": lambda: torch.optim.Adagrad(params, initial_accumulator_value=0.1),
        "Adam": lambda: torch.optim.Adam(params, amsgrad=True),
        "Adamax": lambda: torch.optim.Adamax(params),
        "ASGD": lambda: torch.optim.ASGD(params, t0=2),
        "NAdam": lambda: torch.optim.NAdam(params),
        "RAdam": lambda: torch.optim.RAdam(params),
        "RMSprop": lambda: torch.optim.RMSprop(params, momentum=0.5, centered=True),
        "Rprop": lambda: torch.optim.Rprop(params),
        "SGD": lambda: torch.optim.SGD(params, lr=torch.tensor(0.1)),
    }


@pytest.mark.parametrize("name", many([]))
def test_optimizers_keep_what_torch_has_them_keep(two_ranks, name):
    batches = [slice(0, 20), slice(20, 37)] * 3
    module, found = network(), network()
    optimizer = many(list(module.parameters()))[name]()
    expected = by_torch(module, LOSS, optimizer, batches)
    ours = many(list(found.parameters()))[name]()
    step = synk.torch.step(found, LOSS, ours, [IMAGES, LABELS])
    losses = [step.run(some, IMAGES, LABELS) for some in (batches[:3], batches[3:])]
    np.testing.assert_allclose(np.concatenate(losses), expected, atol=1e-10)
    assert_alike(found, module, 1e-9)
    assert_alike(ours, optimizer, 1e-9)


def test_training_goes_on_with_what_the_script_loads(two_ranks):
    module, expected = network(), network()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    by_torch(module, LOSS, optimizer, [slice(0, 20)] * 3)  # before there is a step
    expected.load_state_dict(module.state_dict())
    theirs = torch.optim.Adam(expected.parameters(), lr=0.01)
    theirs.load_state_dict(optimizer.state_dict())
    step = synk.torch.step(module, LOSS, optimizer, [IMAGES, LABELS])
    first = copy.deepcopy(module.state_dict()), copy.deepcopy(optimizer.state_dict())
    batches = [slice(0, 30), slice(10, 37)]
    losses = by_torch(expected, LOSS, theirs, batches)
    for _ in range(2):
        np.testing.assert_allclose(step.run(batches, IMAGES, LABELS), losses, 1e-12)
        assert_alike(module, expected, 1e-12)
        assert_alike(optimizer, theirs, 1e-12)
        value = LOSS(module(torch.from_numpy(IMAGES)), torch.from_numpy(LABELS))
        assert step.loss(IMAGES, LABELS) == pytest.approx(value.item(), 1e-12)
        module.load_state_dict(first[0])
        optimizer.load_state_dict(first[1])
    with torch.no_grad():
        for parameter in step.pull() and module.parameters():
            parameter.zero_()
    step.push()
    assert step.loss(IMAGES, LABELS) == pytest.approx(np.log(5))


def test_single_precision_is_as_near_as_it_can_be(two_ranks):
    batches = [slice(0, 37), slice(5, 18)] * 10
    module, found = network(dtype=torch.float32), network(dtype=torch.float32)
    expected = by_torch(module, LOSS, sgd(module), batches)
    images = IMAGES.astype("float32")
    given = torch.from_numpy(images), LABELS
    step = synk.torch.step(found, LOSS, sgd(found), given)
    step(images, LABELS, batch=batches[0], check="serial")
    rest = step.run(batches[1:], images, LABELS)
    np.testing.assert_allclose(rest, expected[1:], rtol=2e-6)
    assert_alike(found, module, 1e-6)


# -- losses


def sums(found, target):
    weights = 1.0 + target
    each = torch.nn.functional.cross_entropy(found, target, reduction="none")
    return (weights * each).sum(), weights.sum()


def mean_of_sums(found, target):
    total, weight = sums(found, target)
    return total / weight


def each(found, target):
    return torch.nn.functional.cross_entropy(found, target, reduction="none")


WEIGHTS = torch.arange(1.0, 6.0, dtype=torch.float64)
LOSSES = {
    "weights": [torch.nn.CrossEntropyLoss(weight=WEIGHTS)] * 2,
    "ignored": [torch.nn.CrossEntropyLoss(ignore_index=3)] * 2,
    "both": [torch.nn.CrossEntropyLoss(weight=WEIGHTS, ignore_index=3)] * 2,
    "smoothed": [torch.nn.CrossEntropyLoss(label_smoothing=0.1)] * 2,
    "sum": [torch.nn.CrossEntropyLoss(reduction="sum")] * 2,
    "a vector": [each, LOSS],
    "a function": [torch.nn.functional.cross_entropy] * 2,
    "a pair": [sums, mean_of_sums],
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_ranks_are_those_of_all_rows(two_ranks, name):
    ours, theirs = LOSSES[name]
    module, found = network(), network()
    batches = [slice(0, 37), slice(5, 18), slice(7, 8)] * 2
    expected = by_torch(module, theirs, sgd(module, 0.01), batches)
    step = step_of(found, ours, 0.01)
    np.testing.assert_allclose(step.run(batches, IMAGES, LABELS), expected, atol=1e-12)
    assert_alike(found, module, 1e-12)


class Both(torch.nn.Module):
    """Of two inputs, with a parameter that is fixed, and one that is not used."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(2, 3), torch.nn.Linear(3, 3)
        self.unused = torch.nn.Parameter(torch.ones(2))
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.first.bias.requires_grad_(False)

    def forward(self, x, y):
        return (self.first(x) * self.second(y))[:, self.mask]


def test_modules_of_several_inputs_and_targets(two_ranks):
    torch.manual_seed(0)
    module = Both().double()
    x, y, z = (RNG.normal(size=(11, n)) for n in (2, 3, 2))
    labels = RNG.integers(0, 2, 11)

    def loss(found, near, labels):
        of_labels = torch.nn.functional.cross_entropy(found, labels)
        return ((found - near) ** 2).mean() + of_labels

    trained = [p for p in module.parameters() if p.requires_grad]
    expected = copy.deepcopy(module)
    theirs = torch.optim.SGD(
        [p for p in expected.parameters() if p.requires_grad], lr=0.1
    )
    given = x, y, z, labels
    step = synk.torch.step(
        module, loss, torch.optim.SGD(trained, lr=0.1), given, targets=2
    )
    for _ in range(3):
        theirs.zero_grad()
        tensors = [torch.from_numpy(each) for each in given]
        value = loss(expected(*tensors[:2]), *tensors[2:])
        value.backward()
        theirs.step()
        assert step(*given) == pytest.approx(value.item(), 1e-12)
    assert_alike(module, expected, 1e-12)


# -- what layers do


def dropping():
    torch.manual_seed(1)
    return torch.nn.Sequential(
        *(torch.nn.Dropout2d(0.2), torch.nn.Flatten(), torch.nn.Linear(64, 20)),
        *(torch.nn.Dropout(0.3, inplace=True), torch.nn.SELU()),
        *(torch.nn.AlphaDropout(0.1), torch.nn.Linear(20, 5)),
    ).double()


def test_dropout_is_the_same_on_any_number_of_ranks_and_slices():
    losses, drawn = [], torch.get_rng_state()
    for ranks, slices in ((1, 1), (2, 1), (3, 2)):
        with synk.session(ranks):
            module = dropping()
            torch.set_rng_state(drawn)
            step = step_of(module, seed=4)
            of_batches = [
                float(step(IMAGES, LABELS, batch=batch, num_slices=slices))
                for batch in [slice(0, 37), slice(0, 37), slice(9, 20)]
            ]
            evaluated = float(step.loss(IMAGES, LABELS))
            losses.append([*of_batches, evaluated])
            assert torch.equal(torch.get_rng_state(), drawn)
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=1e-12)
    assert len(set(losses[0])) == 4


class Constant(torch.nn.Module):
    """A layer of random numbers on ones, which training does not change."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.scale = layer, torch.nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return self.layer(torch.ones_like(x) + self.scale)


def counted(found):
    """Return the values that there are, and the part of each."""
    values, counts = torch.unique(found.detach(), return_counts=True)
    return values, counts / found.numel()


class Saving(torch.nn.Module):
    """It computes its layers a second time, for the gradient."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = torch.nn.Sequential(*layers).double()

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.layers, x, use_reentrant=False)


def test_layers_that_are_computed_again_are_exact_or_refused(two_ranks):
    plain = network()
    module = Saving(*copy.deepcopy(plain))
    losses = by_torch(plain, LOSS, sgd(plain), [slice(None)] * 2)
    step = step_of(module)
    ours = [float(step(IMAGES, LABELS)) for _ in range(2)]
    np.testing.assert_allclose(ours, losses, atol=1e-12)
    step = step_of(Saving(torch.nn.Dropout(0.5), *network()))
    with pytest.raises(NotImplementedError, match="checkpoint"):
        step(IMAGES, LABELS)
    assert torch.nn.functional.dropout(torch.ones(2), 0.5, False).sum() == 2


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (torch.nn.Dropout(0.3), (4000, 3)),
        (torch.nn.Dropout1d(0.3), (3000, 4, 2)),
        (torch.nn.Dropout2d(0.3), (3000, 4, 2, 2)),
        (torch.nn.AlphaDropout(0.3), (4000, 3)),
        (torch.nn.FeatureAlphaDropout(0.3), (3000, 4, 2)),
    ],
)
def test_dropout_drops_as_torchs_does(layer, shape, tmp_path):
    """The same values, in the same parts; by whole maps where torch's does so."""
    module, x = Constant(layer), np.ones(shape, "float32")

    def loss(found, target):
        torch.save(found.detach(), tmp_path / "found.pt")
        return 0 * found.sum()

    with synk.session(1):
        synk.torch.step(module, loss, sgd(module), [x, x])(x, x)
    found = torch.load(tmp_path / "found.pt")
    ours, theirs = counted(found), counted(module.train()(torch.from_numpy(x)))
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours[1], theirs[1], rtol=0, atol=0.03)
    if len(shape) > 2:
        maps = found.flatten(2)
        assert bool((maps == maps[:, :, :1]).all())


def normalised():
    torch.manual_seed(1)
    layers = torch.nn.Flatten(), torch.nn.Linear(64, 5), torch.nn.BatchNorm1d(5)
    return torch.nn.Sequential(*layers).double()


def test_batch_normalisation_is_of_a_ranks_rows_and_averages_of_all():
    for ranks in (1, 2):
        module, found = normalised(), normalised()
        expected = by_torch(module, LOSS, sgd(module), [slice(0, 37)] * 3)
        with synk.session(ranks):
            step = step_of(found)
            losses = [float(step(IMAGES, LABELS))]
            mean = found.state_dict()["2.running_mean"].clone()
            losses += [float(step(IMAGES, LABELS)) for _ in range(2)]
        if ranks == 1:
            np.testing.assert_allclose(losses, expected, atol=1e-12)
            assert_alike(found, module, 1e-12)
        torch.testing.assert_close(
            mean, 0.1 * normalised()[:2](torch.from_numpy(IMAGES)).mean(dim=0).detach()
        )
        assert found.state_dict()["2.num_batches_tracked"] == 3


@pytest.mark.parametrize("ranks", [1, 3], indirect=True)
def test_batch_normalisation_by_all_rows_is_that_of_one_process(ranks):
    """Of rows and of maps, one after the other, in uneven parts of uneven batches."""
    batches = [slice(0, 16), slice(16, 32), slice(32, ROWS)] * 5
    modules = []
    for _ in range(2):
        torch.manual_seed(1)
        maps = torch.nn.Conv2d(1, 2, 3, bias=False), torch.nn.BatchNorm2d(2)
        rows = torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(72, 5, bias=False)
        last = torch.nn.BatchNorm1d(5, affine=False, momentum=None)
        modules.append(torch.nn.Sequential(*maps, *rows, last).double())
    plain, found = modules
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.01)
    expected = by_torch(plain, LOSS, optimizer, batches)
    optimizer = torch.optim.AdamW(found.parameters(), lr=0.01)
    inputs = [IMAGES, LABELS]
    step = synk.torch.step(found, LOSS, optimizer, inputs, sync_batch_norm=True)
    losses = [float(step(*inputs, batch=batch)) for batch in batches[:10]]
    losses += step.run(batches[10:], *inputs).tolist()
    step(*inputs, check="serial")
    step.pull()
    by_torch(plain, LOSS, sgd(plain, 0), [slice(None)])
    np.testing.assert_allclose(losses, expected, atol=1e-10)
    averages = [module.state_dict() for module in modules]
    for name in ("1.running_mean", "1.running_var", "5.num_batches_tracked"):
        ours, theirs = (values[name] for values in averages)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


class Failing(torch.nn.Module):
    """Fails on the rank that has a large row."""

    def forward(self, x):
        if (x > 7).any():
            raise ArithmeticError("above seven")
        return x


def test_batch_normalisation_by_all_rows_needs_them_all(two_ranks):
    layers = torch.nn.BatchNorm1d(3), Failing(), torch.nn.BatchNorm1d(3)
    module = torch.nn.Sequential(*layers, torch.nn.Linear(3, 1))
    x = RNG.normal(size=(8, 3)).astype("float32")
    how = torch.nn.MSELoss(), sgd(module), [x, x[:, :1]]
    step = synk.torch.step(module, *how, sync_batch_norm=True)
    for few in ({"batch": slice(0, 1)}, {"num_slices": 2}):
        with pytest.raises(ValueError, match="each must have some, and num_slices"):
            step(x, x[:, :1], **few)
    module[0].eval()  # so that rows are told apart
    step = synk.torch.step(module, *how, sync_batch_norm=True)
    bad = x.copy()
    bad[-1] = 8
    before = module.state_dict()["0.running_mean"].clone()
    for _ in range(3):
        with pytest.raises(ArithmeticError, match="above seven"):
            step(bad, x[:, :1])
        assert np.isfinite(step(x, x[:, :1]))
    torch.testing.assert_close(module.state_dict()["0.running_mean"], before)


def test_layers_stay_in_the_modes_that_the_script_has_set(two_ranks):
    expected, found = normalised(), normalised()
    for module in (expected, found):
        module[2].eval()
    losses = by_torch(expected, LOSS, sgd(expected), [slice(0, 37)] * 3)
    step = step_of(found)
    ours = [float(step(IMAGES, LABELS)) for _ in range(3)]
    np.testing.assert_allclose(ours, losses, atol=1e-12)
    assert_alike(found, expected, 1e-12)


def test_a_trainer_that_goes_on_from_a_file_is_an_uninterrupted_one(
    tmp_path, two_ranks
):
    def made():
        module = torch.nn.Sequential(normalised(), torch.nn.Dropout(0.2))
        optimizer = torch.optim.AdamW(module.parameters())
        step = synk.torch.step(module, LOSS, optimizer, [IMAGES, LABELS])
        return module, synk.Trainer(step)

    how = {"batch_size": 10, "epochs": 2, "progress": False}
    (expected, first), (found, second) = made(), made()
    first.fit(IMAGES, LABELS, **how)
    first.save(tmp_path / "training.npz")
    first.fit(IMAGES, LABELS, **how)
    second.load(tmp_path / "training.npz")
    second.fit(IMAGES, LABELS, **how)
    assert second.history["loss"] == first.history["loss"]
    assert_alike(found, expected, 0)


# -- what is refused, and processes


def test_what_ranks_cannot_train_is_refused():
    module = network()

    def refused(kind, words, module, optimizer=None):
        with pytest.raises(kind, match=words):
            synk.torch.step(module, LOSS, optimizer or sgd(module), [IMAGES, LABELS])

    refused(TypeError, "LBFGS", module, torch.optim.LBFGS(module.parameters()))
    some = list(module.parameters())[:2]
    refused(ValueError, "all of the module's", module, torch.optim.SGD(some))
    others = [*module.parameters(), *network().parameters()]
    refused(ValueError, "not the module's", module, torch.optim.SGD(others))
    refused(TypeError, "bfloat16", network(dtype=torch.bfloat16))
    mixed = network()
    mixed[1].float()
    refused(TypeError, "float32, torch.float64", mixed)
    refused(TypeError, "is on meta", network().to("meta"))
    refused(ValueError, "all of", network().requires_grad_(False))


THREADS = """
import numpy as np, torch, synk, synk.torch
threads = torch.get_num_threads()
torch.ones(500, 500) @ torch.ones(500, 500)  # starts OpenMP's threads

class Module(torch.nn.Module):
    def __init__(self, wanted):
        super().__init__()
        self.w, self.wanted = torch.nn.Parameter(torch.ones(300, 300)), wanted
    def forward(self, x):
        assert torch.get_num_threads() == self.wanted, torch.get_num_threads()
        _, has_mkl, of_mkl = torch.__config__.parallel_info().partition("mkl_get_max")
        assert not has_mkl or of_mkl.startswith(f"_threads() : {self.wanted}"), of_mkl
        return x @ self.w

x = np.ones((600, 300), "float32")
for wanted in (1, 2):
    module = Module(wanted)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    step = synk.torch.step(module, torch.nn.MSELoss(), optimizer, [x, x])
    with synk.session(2, threads=wanted):
        step(x, x, timeout=30), step(x, x, timeout=30)
    assert torch.get_num_threads() == threads
print("done")
"""


@pytest.mark.parametrize("told", [None, "2"])  # MKL reads it, whatever OpenMP is told
def test_ranks_compute_with_threads_of_their_own(told, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(THREADS)
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": told}
    assert run_python(script, **environment).stdout == "done\n"


@pytest.fixture
def moving(monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(str(DOCS / "models"))
    yield
    for name in ("ddp", "ddp_synk", "mpilearn_torch_synk"):
        sys.modules.pop(name, None)


def test_the_script_of_ddp_has_its_losses(moving, two_ranks):
    code = "import ddp, json; print(json.dumps(ddp.train(epochs=2)[0]))"
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    done = run_python(
        *("-c", code), **place, MASTER_PORT="0", PYTHONPATH=str(DOCS / "models")
    )
    import ddp_synk

    expected = json.loads(done.stdout)
    losses, _ = ddp_synk.train(epochs=2)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)


def test_rules_of_mpi_learn_train_as_well_as_exact_training(moving, two_ranks):
    import mpilearn_torch_synk as script

    rules = synk.rules
    exact = [script.train(lr=0.3, seed=s)["val_accuracy"][-1] for s in range(3)]
    ways = [
        (rules.Downpour(1, "adam", learning_rate=0.005), 1.0),
        (rules.EASGD(every=4), 0.6),
        (rules.GEM(learning_rate=0.05), 1.0),
    ]
    for rule, rate in ways:
        found = script.train(rule, lr=rate)["val_accuracy"][-1]
        assert found > np.mean(exact) - (max(exact) - min(exact)), rule


def test_a_rank_that_dies_is_an_error_and_training_goes_on():
    module, expected = network(), network()
    optimizer, theirs = (
        torch.optim.Adam(each.parameters(), lr=0.01) for each in (module, expected)
    )
    step = synk.torch.step(module, LOSS, optimizer, [IMAGES, LABELS])
    with synk.session(2):
        losses = [float(step(IMAGES, LABELS))]
        kill(1)
        with pytest.raises(synk.WorkerDied):
            step(IMAGES, LABELS)
        synk.recover()
        losses += [float(step(IMAGES, LABELS)) for _ in range(3)]
    batches = [slice(None)] * 4
    np.testing.assert_allclose(losses, by_torch(expected, LOSS, theirs, batches), 1e-10)
    assert_alike(module, expected, 1e-10)
