"""Training steps: `train_function`, Keras's models, and checks for a `Trainer`."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Variable

from ..call.function import Function
from ..call.make import function
from ..ops import grad
from ..reduce_ops import ReduceOp
from ..rules.rule import Rule, update_rule
from ..user_frames import entry


@entry
def train_function(
    inputs: Sequence, loss: Any, params: Any, rule: Any, **options: Any
) -> Function:
    """Make a function whose call is a training step.

    The same as ``synk.function(inputs, loss, updates=rule(synk.grad(loss, params),
    params))``, with further arguments for both.

    Parameters
    ----------
    inputs : list of TensorVariable
        Scattered, as for :func:`synk.function`.
    loss : scalar variable, (variable, op), or list of which this is the first
        A call returns the loss before the step. The op is ``"avg"`` if the loss is a
        mean over rows and ``"sum"`` if it is a sum; by default it follows from the
        graph, as for any output. Other elements of a list are further outputs, in any
        form that :func:`synk.function` takes.
    params : shared variable, or list of these
        The parameters that the rule moves.
    rule : callable or str
        Called with a list of gradients and the list of `params`, returns updates: a
        function of ``synk.updates``, its name, or a function with the same arguments,
        such as Lasagne's.
    **options
        Arguments of :func:`synk.function` are passed to it: `bcast_inputs`, `givens`,
        `mode`, `name` and so on; `updates` are added to the rule's. All others are the
        rule's, such as ``learning_rate=0.1``.

    Returns
    -------
    Function

    Raises
    ------
    TypeError, ValueError
        If the loss is not a scalar, or has another op than "avg" and "sum"; if the rule
        does not exist, or does not take an option; if both the rule and
        :func:`synk.function` take an option.

    Examples
    --------
    >>> import numpy as np, pytensor, pytensor.tensor as pt, synk
    >>> x, y = pt.matrix("x"), pt.vector("y")
    >>> w = pytensor.shared(np.zeros(2), "w")
    >>> loss = ((x @ w - y) ** 2).mean()
    >>> train = synk.train_function([x, y], loss, [w], "adam", learning_rate=0.1)
    >>> with synk.session(2):
    ...     losses = [float(train(np.eye(2), [1.0, -1.0])) for _ in range(100)]
    >>> losses[0], losses[-1] < 1e-3
    (1.0, True)
    """
    move = update_rule(rule)
    ours, of_rule = _sort_options(move, options)
    outputs = loss if isinstance(loss, list) else [loss]
    if not outputs:
        raise ValueError("the list of outputs must begin with the loss, and is empty")
    params = check_params(params)
    cost, op = _check_loss(inputs, outputs[0], ours)
    updates = _pairs(move(grad(cost, params, op=op), params, **of_rule))
    updates += _pairs(ours.pop("updates", None) or [])
    return function(inputs, loss, updates=updates, **ours)


_OURS = (
    inspect.signature(function).parameters.keys()
    | inspect.signature(pytensor.function).parameters.keys()
)


def _sort_options(rule: Callable, options: dict) -> tuple[dict, dict]:
    """Return the options for `synk.function`, and those for the rule."""
    if "outputs" in options:
        raise TypeError("outputs: pass a list that begins with the loss as `loss`")
    ours = {name: value for name, value in options.items() if name in _OURS}
    try:
        takes = set(inspect.signature(rule).parameters)
    except ValueError:  # the rule is not written in Python
        takes = set()
    takes -= set(getattr(rule, "keywords", ()))  # those that functools.partial has set
    both = sorted(takes.intersection(ours))
    if both:
        raise TypeError(
            f"{', '.join(both)} could be meant for the rule or for synk.function; give"
            " the rule's with functools.partial(rule, ...)"
        )
    return ours, {n: value for n, value in options.items() if n not in ours}


def check_params(params: Any) -> list[SharedVariable]:
    """Return parameters as a list; raise if one is listed twice, or is not shared."""
    params = [params] if isinstance(params, SharedVariable) else list(params)
    for param in params:
        if not isinstance(param, SharedVariable):
            raise TypeError(f"parameters must be shared variables, got {param!r}")
    if len(set(params)) < len(params):
        raise ValueError("a parameter is listed twice")
    return params


def _check_loss(inputs: Sequence, output: Any, ours: dict) -> tuple[Variable, ReduceOp]:
    """Return the loss, and the op by which ranks combine its gradients."""
    loss = output[0] if isinstance(output, tuple) and output else output
    if not isinstance(loss, Variable):
        raise TypeError(f"the loss must be a variable or (variable, op), got {loss!r}")
    if getattr(loss.type, "ndim", None) != 0:
        raise ValueError(
            f"the loss must be a scalar, got {loss} ({loss.type}); take its mean"
        )
    # The op of the gradients is that of the loss as an output of a function.
    options = {**ours, "updates": None, "on_unused_input": "ignore"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the step itself will warn
        (op,) = function(inputs, [output], **options).output_modes
    if op not in ("avg", "sum") and (op is not None or isinstance(output, tuple)):
        raise ValueError(
            f"the loss is combined by {op!r}: only 'avg' and 'sum' have gradients"
        )
    return loss, op or "avg"


def _pairs(updates: Any) -> list:
    """Return updates, a dict or a list, as a list."""
    return list(updates.items() if isinstance(updates, Mapping) else updates)


def check_local(step: Function, rule: Rule) -> None:
    """Raise unless each rank can make the step by itself, for `rule`."""
    if not step.is_local:
        raise ValueError(
            f"{step!r} is exact training, and {rule!r} is for steps that each rank"
            " makes by itself: make it with local=True, and gradients by pytensor.grad"
        )
    if step.reduces:
        raise ValueError(
            f"{step!r} reduces values of all ranks, which {rule!r} is in place of: take"
            " gradients by pytensor.grad and not by synk.grad, and no all_reduce"
        )


def check_of_nodes(step: Function, rule: Rule | None) -> None:
    """Raise unless a node's ranks can make the step together, as one worker."""
    if rule is None:
        raise ValueError("workers='nodes' is for a rule: exact training has no workers")
    if step.is_local:
        raise ValueError(
            f"{step!r} is made by each rank for itself, and with workers='nodes' all"
            " ranks of a machine make it together: make it without local=True, and"
            " gradients by pytensor.grad or synk.grad, as for exact training"
        )
    if rule.order == "free" or not rule.has_centre:
        raise ValueError(f"{rule!r} is for ranks of one machine, and not for nodes")


# -- a model of Keras 2, on its Theano backend
#
# The weights of such a model are shared variables, and its optimiser makes updates of
# them. The attributes used here are public in Keras 2.3.1 and 2.2.5, the last releases
# of 2.3 and 2.2.


def is_keras_model(step: Any) -> bool:
    """Return whether `step` is a model of Keras."""
    return any(
        kind.__name__ == "Model" and kind.__module__.partition(".")[0] == "keras"
        for kind in type(step).__mro__
    )


def step_of_keras(model: Any, is_local: bool) -> Function:
    """Return a training step of a compiled model, the same as its ``train_on_batch``.

    The step takes a batch for each input and output of the model, and returns the loss.
    With `is_local` each rank makes it by itself, for a training rule.
    """
    backend = sys.modules["keras"].backend
    if backend.backend() != "theano":
        raise TypeError(
            f"a Keras model of the {backend.backend()} backend is no graph that synk"
            " knows: set KERAS_BACKEND=theano before keras is imported"
        )
    if getattr(model, "optimizer", None) is None:
        raise ValueError(f"compile the Keras model {model.name} before it is trained")
    inputs = [*model.inputs, *(each for each in model.targets if each is not None)]
    givens: dict[Any, Any] = {}
    if not isinstance(phase := backend.learning_phase(), int):
        givens[phase] = pt.constant(np.array(1, phase.type.dtype))
    for weights in model.sample_weights:
        if weights is not None:  # all samples count alike
            ones = pt.ones(inputs[0].shape[:1], dtype=weights.type.dtype)
            givens[weights] = ones if weights.type.ndim == 1 else ones[:, None]
    moved = model.optimizer.get_updates(model.total_loss, model.trainable_weights)
    return function(
        inputs,
        model.total_loss,
        updates=[*model.updates, *moved],
        givens=givens,
        local=is_local,
        name=model.name,
        on_unused_input="ignore",
        allow_input_downcast=True,
    )
