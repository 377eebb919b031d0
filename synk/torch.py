"""Modules of torch as training steps: `synk.torch.step`.

A `TorchModel` is a `synk.train.Model` whose arrays are the memory of a module's
parameters and buffers, and of its optimizer's state.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from .ranks.session import SESSION
from .train.models import Draw, Model, Step
from .train.models import step as step_of
from .user_frames import entry

Tensors = Sequence[torch.Tensor]


@entry
def step(
    module: torch.nn.Module,
    loss: Callable,
    optimizer: torch.optim.Optimizer,
    inputs: Sequence,
    *,
    targets: int = 1,
    clip_norm: float | None = None,
    seed: int = 0,
    sync_batch_norm: bool = False,
    **options: Any,
) -> Step:
    """Make a training step of a module of torch.

    A call computes the same as the training loop of one process: the gradients of the
    loss over all rows, of which each rank has a part, and a step of the optimizer.
    Every rank has a copy of the module. The script's module is brought up to date when
    it is called, and by ``module.state_dict()`` and ``optimizer.state_dict()``; after
    their ``load_state_dict`` ranks go on with the new values.

    Parameters
    ----------
    module : torch.nn.Module
        On the CPU, with trainable parameters of one dtype, float32 or float64.
    loss : callable
        Called with the module's result and the targets. It returns the mean over the
        rows, as torch's losses do by default; or a loss for each row; or, if rows have
        weights, a pair: the sum, and the number to divide it by. The weights and
        `ignore_index` of ``CrossEntropyLoss`` and ``NLLLoss`` are taken into account.
        With ``reduction="sum"`` the step is by the sum.
    optimizer : torch.optim.Optimizer
        The optimizer of the module's parameters. The script, or a scheduler, may change
        its learning rate and other numbers: a call uses their present values.
    inputs : sequence of array_like, torch.Tensor or TensorVariable
        Examples of the step's inputs, for their dtypes and numbers of axes: first the
        module's arguments, then the loss's targets. All have rows.
    targets : int
        The number of targets, the last inputs.
    clip_norm : float, optional
        The norm that the gradient of all rows is clipped to, as by
        ``torch.nn.utils.clip_grad_norm_``.
    seed : int
        The seed of dropout.
    sync_batch_norm : bool
        Whether layers of batch normalisation use the mean and the variance of all
        ranks' rows. Then each rank must have some rows of a batch, and `num_slices`
        must be 1.
    **options
        Arguments of :func:`synk.train.step`: `name`, and `local` for a step that each
        rank makes by itself, for a training rule.

    Returns
    -------
    synk.train.Step
        A :class:`synk.Function`, which returns the loss before the step.

    Raises
    ------
    TypeError, ValueError
        If ranks cannot train the module or use the optimizer.

    Notes
    -----
    A step runs each layer in the mode it had when the step was made, mostly that of
    ``module.train()``; ``step.loss`` runs all in the mode of ``module.eval()``.

    Layers whose output for a row depends on other rows, such as ``BatchNorm``, use a
    rank's own rows, as with torch's DistributedDataParallel; running averages become
    the mean of the ranks'. With `sync_batch_norm` the numbers are those of one process.
    The elements that ``dropout`` drops of a row (along axis 0) do not depend on ranks
    or slices. Other random numbers, such as those of attention layers, differ between
    ranks; they are the same in each run on the same number of ranks.

    Examples
    --------
    >>> import numpy as np, synk, synk.torch, torch
    >>> module = torch.nn.Linear(3, 1).double()
    >>> optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    >>> x = np.random.default_rng(0).normal(size=(50, 3))
    >>> y = x.sum(axis=1, keepdims=True)
    >>> step = synk.torch.step(module, torch.nn.MSELoss(), optimizer, [x, y])
    >>> with synk.session(2):
    ...     losses = [float(step(x, y)) for _ in range(100)]
    >>> losses[-1] < 1e-6, round(module(torch.ones(1, 3).double()).item(), 2)
    (True, 3.0)
    """
    how = targets, clip_norm, sync_batch_norm
    model = TorchModel(module, loss, optimizer, *how)
    rows = [each.numpy() if torch.is_tensor(each) else each for each in inputs]
    made = step_of(model, rows, seed=seed, **options)
    model.follow(made)
    return made


_forks: list[None] = []
os.register_at_fork(after_in_child=partial(_forks.append, None))


class Threads:
    """Runs torch with a rank's number of threads.

    ``set_num_threads`` also sets the number of MKL's threads, which torch's MKL takes
    from the environment when it is loaded. In the script's process the old number is
    set again afterwards.

    OpenMP's threads do not survive a fork: if the parent had used them, the child would
    wait for them forever. So a child computes in a new thread, which starts its own.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def __reduce__(self) -> tuple:
        return Threads, ()

    def run(self, work: Callable[..., Any], *args: Any) -> Any:
        """Return ``work(*args)``."""
        if not _forks or (SESSION.threads or 1) == 1:
            return self._run(work, *args)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1)
        return self._pool.submit(self._run, work, *args).result()

    @staticmethod
    def _run(work: Callable[..., Any], *args: Any) -> Any:
        before = torch.get_num_threads()
        torch.set_num_threads(SESSION.threads or before)
        try:
            return work(*args)
        finally:
            if SESSION.rank == 0:
                torch.set_num_threads(before)


def _with_threads(method: Callable) -> Callable:
    """Make a method of `TorchModel` run with the rank's threads."""

    @wraps(method)
    def run(model: TorchModel, *args: Any) -> Any:
        return model._threads.run(method, model, *args)

    return run


def _memory(name: str, doc: str) -> Any:
    """Return a property of a `TorchModel`: the memory of tensors, as arrays."""

    def get(model: TorchModel) -> list[np.ndarray]:
        return [tensor.detach().numpy() for tensor in getattr(model, name)]

    def set(model: TorchModel, arrays: Sequence[np.ndarray]) -> None:
        for tensor, array in zip(getattr(model, name), arrays, strict=True):
            tensor.data = as_tensor(array)

    return property(get, set, doc=doc)


class TorchModel(Model):
    """A module of torch with its loss and its optimizer."""

    def __init__(
        self,
        module: torch.nn.Module,
        loss: Callable,
        optimizer: torch.optim.Optimizer,
        targets: int = 1,
        clip_norm: float | None = None,
        sync_batch_norm: bool = False,
    ) -> None:
        self._module, self._loss, self._optimizer = module, loss, optimizer
        self._syncs_batch_norm = sync_batch_norm
        self._targets, self._clip_norm = targets, clip_norm
        self._threads = Threads()
        self.is_mean = getattr(loss, "reduction", "mean") != "sum"
        _check(module, optimizer)
        # By layer: some may be in evaluation mode, such as fixed batch normalisation.
        self._modes = [each.training for each in module.modules()]
        self._trained = [p for p in module.parameters() if p.requires_grad]
        # Without booleans: masks of several ranks cannot be combined.
        self._buffers = [b for b in module.buffers() if b.dtype != torch.bool]
        self._state = _State(module, optimizer, self._trained)

    # -- memory

    parameters = _memory("_trained", "The parameters that require a gradient.")
    buffers = _memory("_buffers", "The module's buffers, except booleans.")

    @property
    def kept(self) -> list[np.ndarray]:  # type: ignore[override]
        """The optimizer's state; see `_State`."""
        return self._state.arrays

    @kept.setter
    def kept(self, arrays: Sequence[np.ndarray]) -> None:
        self._state.set_memory(arrays)

    @property
    def settings(self) -> list[float]:  # type: ignore[override]
        """The numbers of the optimizer's groups."""
        return [value for _, _, _, value in _numbers(self._optimizer)]

    @settings.setter
    def settings(self, values: Sequence[float]) -> None:
        old = list(_numbers(self._optimizer))
        for (group, name, i, was), value in zip(old, values, strict=True):
            if was == value:
                continue
            if i is not None:
                several = list(group[name])
                several[i] = value
                group[name] = tuple(several)
            elif torch.is_tensor(group[name]):
                group[name].fill_(value)
            else:
                group[name] = value

    def follow(self, made: Step) -> None:
        """Have the script's module and optimizer get the ranks' values when used."""
        pull, push = _Hook(made.pull), _Hook(made.push)
        self._module.register_forward_pre_hook(pull)
        for each in (self._module, self._optimizer):
            each.register_state_dict_pre_hook(pull)
            each.register_load_state_dict_pre_hook(pull)  # for values it does not set
            each.register_load_state_dict_post_hook(push)

    # -- computing

    @_with_threads
    def gradient(self, *rows: np.ndarray) -> tuple[float, list[np.ndarray], float]:
        """Return the rows' loss (a sum), its gradient, and the rows' weight."""
        for each, mode in zip(self._module.modules(), self._modes, strict=True):
            each.training = mode
        all_reduce = self.all_reduce if self._syncs_batch_norm else None
        with drawing(self.draw, all_reduce):
            loss, weight = self._summed(rows)
            found = gradients(loss, self._trained, self._syncs_batch_norm)
        return loss.item(), [gradient.numpy() for gradient in found], weight

    @_with_threads
    def update(self, gradient: Sequence[np.ndarray]) -> None:
        """Make a step of the optimizer."""
        for param, array in zip(self._trained, gradient, strict=True):
            param.grad = torch.from_numpy(array)
        if self._clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._trained, self._clip_norm)
        self._state.step()

    @_with_threads
    @torch.no_grad()
    def loss(self, *rows: np.ndarray) -> tuple[float, float]:
        """Return the rows' loss (a sum) and weight, in evaluation mode."""
        self._module.eval()
        loss, weight = self._summed(rows)
        return loss.item(), weight

    def before_step(self) -> None:
        """Make a step without gradients, which moves nothing: schedulers count it."""
        self._optimizer.zero_grad()
        self._optimizer.step()

    def _summed(self, rows: Sequence[np.ndarray]) -> tuple[torch.Tensor, float]:
        tensors = list(map(as_tensor, rows))
        at = len(tensors) - self._targets
        found = self._loss(self._module(*tensors[:at]), *tensors[at:])
        if isinstance(found, tuple):
            total, weight = found
            return total, float(weight)
        if found.ndim:
            return found.sum(), len(tensors[0])
        weight = _weight(self._loss, tensors)
        return (found * weight if self.is_mean else found), weight


def _check(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise unless ranks can train the module by the optimizer."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError("LBFGS computes the loss again within a step: ranks cannot")
    own = {id(p) for p in module.parameters() if p.requires_grad}
    moved = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not own or moved < own:
        raise ValueError("the optimizer must have all of the module's parameters")
    if moved - own:
        raise ValueError("the optimizer has parameters that are not the module's")
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.device.type != "cpu":
            raise TypeError(f"{name} is on {tensor.device}: ranks train on the CPU")
    dtypes = {p.dtype for p in module.parameters() if p.requires_grad}
    if len(dtypes) > 1 or not dtypes <= {torch.float32, torch.float64}:
        shown = ", ".join(sorted(str(dtype) for dtype in dtypes))
        raise TypeError(
            f"parameters of {shown}: they must be of one dtype, float32 or float64"
        )


def _weight(loss: Callable, tensors: Tensors) -> float:
    """Return the number that torch divides by to make a loss a mean."""
    target = tensors[-1]
    of_labels = torch.nn.CrossEntropyLoss, torch.nn.NLLLoss
    if isinstance(loss, of_labels) and not target.is_floating_point():
        counted = target[target != loss.ignore_index]
        if loss.weight is None:
            return counted.numel()
        return float(loss.weight[counted].sum())
    return len(tensors[0])


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """Return a tensor in the memory of an array, or of a copy if it is read-only."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


class _Hook:
    """Calls `call`, in this process alone: a pickled or copied hook does nothing."""

    def __init__(self, call: Callable | None = None) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> None:
        if self._call is not None:
            self._call()

    def __reduce__(self) -> tuple:
        return _Hook, ()


# -- an optimizer


def _numbers(optimizer: torch.optim.Optimizer) -> Iterator[tuple]:
    """Yield the numbers of an optimizer's groups: group, name, index, value.

    The index is None unless the group has a tuple of that name.
    """
    for group in optimizer.param_groups:
        for name in optimizer.defaults:  # not the numbers that schedulers add
            value: Any = group.get(name)
            several = isinstance(value, tuple)
            for i, each in enumerate(value if several else [value]):
                if torch.is_tensor(each) and each.ndim == 0:
                    each = each.item()
                if isinstance(each, (int, float)) and not isinstance(each, bool):
                    yield group, name, i if several else None, float(each)


class _State:
    """The tensors of an optimizer's state, as arrays.

    Most optimizers make their state in the first step, and not all as zeros. So the
    first array is a flag: 0 before this step, when there is no state and the others do
    not count. Their shapes are found by a step of a copy of the optimizer.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        trained: Sequence[torch.nn.Parameter],
    ) -> None:
        self._optimizer, self._trained = optimizer, trained
        self._memory: Sequence[np.ndarray] = ()
        states = [optimizer.state.get(param, {}) for param in trained]
        if not any(states):
            states = _state_after_step(module, optimizer)
        self._like = [dict(state) for state in states]

    def _tensors(self, states: Sequence[dict]) -> list[torch.Tensor]:
        """Return the tensors of all parameters' states, one after the other."""
        return [
            state[name]
            for like, state in zip(self._like, states, strict=True)
            for name, value in like.items()
            if torch.is_tensor(value)
        ]

    @property
    def arrays(self) -> list[np.ndarray]:
        """The flag, and the tensors of the present state."""
        states = [self._optimizer.state.get(param, {}) for param in self._trained]
        number = np.ones if any(states) else np.zeros
        tensors = self._tensors(states if any(states) else self._like)
        # Before the first step these are the copy's, for their shapes.
        found = [tensor.detach().numpy() for tensor in tensors]
        return [number((), self._trained[0].detach().numpy().dtype), *found]

    def set_memory(self, arrays: Sequence[np.ndarray]) -> None:
        """Set the optimizer's state to the memory of arrays."""
        is_made, *self._memory = arrays
        self._is_made = is_made
        if not is_made:
            for param in self._trained:
                self._optimizer.state.pop(param, None)
            return
        left = iter(self._memory)
        for param, like in zip(self._trained, self._like, strict=True):
            tensors = {
                n: as_tensor(next(left)) for n in like if torch.is_tensor(like[n])
            }
            self._optimizer.state[param].update({**like, **tensors})

    def step(self) -> None:
        """Make a step, and write the new state to the arrays given to `set_memory`."""
        self._optimizer.step()
        states = [self._optimizer.state[param] for param in self._trained]
        for array, tensor in zip(self._memory, self._tensors(states), strict=True):
            new = tensor.numpy()
            if new.ctypes.data != array.ctypes.data:
                array[...] = new
        self._is_made[...] = 1


def _state_after_step(
    module: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> list[dict[str, Any]]:
    """Return the state that a copy of an optimizer has after a step, by parameter."""
    module, optimizer = copy.deepcopy((module, optimizer))
    trained = [p for p in module.parameters() if p.requires_grad]
    for param in trained:
        param.grad = torch.zeros_like(param)
    optimizer.step()
    return [optimizer.state.get(param, {}) for param in trained]


# -- random numbers


@contextlib.contextmanager
def drawing(
    draw: Draw, all_reduce: Callable[[np.ndarray], np.ndarray] | None = None
) -> Iterator[None]:
    """Have torch draw the random numbers of `draw` in a ``with`` block.

    With `all_reduce`, batch normalisation is by all ranks' rows. Afterwards torch's
    generator has its former state, as the script's process is a rank, too. Not by
    ``torch.manual_seed``, which stores a seed for each kind of absent device, for good.
    """
    generator = torch.default_generator
    before = generator.get_state()
    try:
        generator.manual_seed(draw.seed)
        with _OfRows(draw, all_reduce):
            yield
    finally:
        generator.set_state(before)


class _OfRows(TorchFunctionMode):
    """Replaces layers, so that a row's result does not depend on the rank that has it.

    Dropout draws by the row's number. Batch normalisation is by all ranks' rows, if
    there is an `all_reduce`.
    """

    def __init__(self, draw: Draw, all_reduce: Callable | None) -> None:
        super().__init__()
        self._draw, self._all_reduce = draw, all_reduce

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is functional.batch_norm and self._all_reduce is not None:
            return self._batch_norm(*args, **(kwargs or {}))
        ours = _DROPOUTS.get(func)
        if ours is None:
            return func(*args, **(kwargs or {}))
        axes, scaled = ours
        return self._dropout(func, axes, scaled, *args, **(kwargs or {}))

    def _dropout(
        self,
        func: Callable,
        axes: int | None,
        scaled: Callable,
        input: torch.Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> torch.Tensor:
        if not training or not 0 < p < 1 or input.ndim < (axes or 1):
            return func(input, p, training, inplace)
        shape = input.shape[:axes] + (1,) * (input.ndim - len(input.shape[:axes]))
        keep = self._draw.uniform(shape) >= p
        found = scaled(input, torch.from_numpy(keep).to(input.dtype), p)
        return input.copy_(found) if inplace else found

    def _batch_norm(
        self,
        input: torch.Tensor,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> torch.Tensor:
        """Ioffe and Szegedy, "Batch normalization", ICML 2015, algorithm 1."""
        if not training:
            running = running_mean, running_var, weight, bias
            return functional.batch_norm(input, *running, False, momentum, eps)
        axes = [i for i in range(input.ndim) if i != 1]
        count = input.new_tensor([input.numel() / input.shape[1]])
        sums: Any = _Sum.apply(torch.cat([count, input.sum(axes)]), self._all_reduce)
        n, mean = sums[0].item(), sums[1:] / sums[0].detach()
        shape = [-1] + [1] * (input.ndim - 2)
        centred = input - mean.view(shape)
        squares: Any = _Sum.apply((centred**2).sum(axes), self._all_reduce)
        var = squares / n
        with torch.no_grad():
            if running_mean is not None:
                running_mean.mul_(1 - momentum).add_(mean, alpha=momentum)
            if running_var is not None:
                running_var.mul_(1 - momentum).add_(squares / (n - 1), alpha=momentum)
        found = centred * (var + eps).rsqrt().view(shape)
        if weight is not None:
            found = found * weight.view(shape)
        return found if bias is None else found + bias.view(shape)


class _Sum(torch.autograd.Function):
    """A sum over ranks, whose gradient is a sum over ranks, too."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, all_reduce: Callable) -> torch.Tensor:
        ctx.all_reduce = all_reduce
        return torch.from_numpy(all_reduce(values.numpy()))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        [gradient] = gradients
        return torch.from_numpy(ctx.all_reduce(gradient.numpy())), None


def _dropped(input: torch.Tensor, keep: torch.Tensor, p: float) -> torch.Tensor:
    return input * keep.div_(1 - p)


def _alpha_dropped(input: torch.Tensor, keep: torch.Tensor, p: float) -> torch.Tensor:
    """Klambauer et al., "Self-normalizing neural networks", NeurIPS 2017, section 2."""
    low = -1.7580993408473766  # SELU's limit at minus infinity
    a = ((1 - p) * (1 + p * low**2)) ** -0.5
    return (input * keep + low * (1 - keep)) * a - a * p * low


_DROPOUTS: dict[Any, tuple[int | None, Callable]] = {
    functional.dropout: (None, _dropped),
    functional.dropout1d: (2, _dropped),
    functional.dropout2d: (2, _dropped),
    functional.dropout3d: (2, _dropped),
    functional.alpha_dropout: (None, _alpha_dropped),
    functional.feature_alpha_dropout: (2, _alpha_dropped),
}
"""By function: the number of first axes to draw for (None: all), and the scaling."""


def gradients(
    loss: torch.Tensor, trained: Tensors, syncs_batch_norm: bool = False
) -> tuple[torch.Tensor, ...]:
    """Return the gradients of a loss computed in `drawing`; zeros if it has none.

    `syncs_batch_norm` says whether batch normalisation was by all ranks' rows.
    """
    with _refusing([*_DROPOUTS, *[functional.batch_norm] * syncs_batch_norm]):
        return torch.autograd.grad(
            loss, trained, allow_unused=True, materialize_grads=True
        )


@contextlib.contextmanager
def _refusing(functions: Sequence[Callable]) -> Iterator[None]:
    """Make calls of `functions` errors in a ``with`` block that computes gradients.

    ``torch.utils.checkpoint`` would compute layers again there, without `_OfRows`, and
    so drop other elements.
    """

    def refused(*args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            "torch.utils.checkpoint cannot have layers of dropout, or of batch"
            " normalisation by all ranks' rows"
        )

    plain = {each.__name__: each for each in functions}
    try:
        for name in plain:
            setattr(functional, name, refused)
        yield
    finally:
        for name, each in plain.items():
            setattr(functional, name, each)
