"""ResNet-50 and its training step, written in JAX by hand: a reference, and a rival.

Parameters are a dict of arrays with the names that ``demos/resnet.py`` gives them, so
that values can be passed to and fro. Nothing of synk or PyTensor is used.

In 16 bits it is written as is usual: parameters are float32 and converted where they
are used, activations are of 16 bits, and batch normalisation computes in float32.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

BLOCKS = (3, 4, 6, 3)
MOMENTUM, DECAY, AVERAGED, EPSILON = 0.9, 1e-4, 0.1, 1e-5
MEAN, DEVIATION = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)
STATISTICS = (".mean", ".variance")


def conv(x: Any, w: Any, stride: int) -> Any:
    padding = ((w.shape[-1] // 2,) * 2,) * 2
    axes = ("NCHW", "OIHW", "NCHW")
    return lax.conv_general_dilated(
        x, w, (stride, stride), padding, dimension_numbers=axes
    )


def max_pool(x: Any) -> Any:
    """Return maxima of 3x3 windows, every second one, with a border of one pixel."""
    window, strides = (1, 1, 3, 3), (1, 1, 2, 2)
    padding = ((0, 0), (0, 0), (1, 1), (1, 1))
    return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding)


class Pass:
    """One pass through the network; collects the new running averages."""

    def __init__(self, values: dict, training: bool, dtype: Any = None) -> None:
        self.values = values
        self.training = training
        self.dtype = values["dense.W"].dtype if dtype is None else dtype
        self.averages: dict = {}

    def norm(self, x: Any, name: str) -> Any:
        v = self.values
        x = x.astype(v[f"{name}.mean"].dtype)
        old = v[f"{name}.mean"], v[f"{name}.variance"]
        mean, variance = old
        if self.training:
            mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
            count = x.size / x.shape[1]
            new = mean, variance * count / (count - 1)
            for kind, before, now in zip(STATISTICS, old, new, strict=True):
                average = (1 - AVERAGED) * before + AVERAGED * now
                self.averages[name + kind] = lax.stop_gradient(average)
        scale = v[f"{name}.gamma"] * lax.rsqrt(variance + EPSILON)
        shift = v[f"{name}.beta"]
        wide = (slice(None), None, None)
        return ((x - mean[wide]) * scale[wide] + shift[wide]).astype(self.dtype)

    def conv(self, x: Any, name: str, stride: int) -> Any:
        w = self.values[f"{name}.W"].astype(self.dtype)
        return self.norm(conv(x, w, stride), f"{name}.norm")

    def block(self, x: Any, name: str, stride: int) -> Any:
        shortcut = x
        if f"{name}.shortcut.W" in self.values:
            shortcut = self.conv(x, f"{name}.shortcut", stride)
        x = jax.nn.relu(self.conv(x, f"{name}.conv1", 1))
        x = jax.nn.relu(self.conv(x, f"{name}.conv2", stride))
        return jax.nn.relu(shortcut + self.conv(x, f"{name}.conv3", 1))

    def logits(self, images: Any, blocks: Any = BLOCKS) -> Any:
        dtype = self.values["dense.W"].dtype
        mean, deviation = (
            jnp.array(numbers, dtype)[:, None, None] for numbers in (MEAN, DEVIATION)
        )
        x = (images.astype(dtype) - mean) / deviation
        x = max_pool(jax.nn.relu(self.conv(x.astype(self.dtype), "stem", 2)))
        for stage, number in enumerate(blocks):
            for i in range(number):
                stride = 2 if stage > 0 and i == 0 else 1
                x = self.block(x, f"block{stage + 1}.{i + 1}", stride)
        x = x.mean((2, 3)) @ self.values["dense.W"].astype(self.dtype)
        return x.astype(dtype) + self.values["dense.b"]


def is_trained(name: str) -> bool:
    return not name.endswith(STATISTICS)


def cost(
    trained: dict,
    averages: dict,
    x: Any,
    y: Any,
    blocks: Any = BLOCKS,
    dtype: Any = None,
) -> tuple[Any, tuple]:
    """Return the cost, with weight decay; also loss, logits and new averages."""
    one_pass = Pass(trained | averages, True, dtype)
    logits = one_pass.logits(x, blocks)
    log_p = jax.nn.log_softmax(logits)
    loss = -jnp.take_along_axis(log_p, y[:, None], axis=1).mean()
    squares = sum(jnp.sum(w**2) for name, w in trained.items() if name.endswith(".W"))
    return loss + DECAY / 2 * squares, (loss, logits, one_pass.averages)


def gradients(
    values: dict, x: Any, y: Any, blocks: Any = BLOCKS, dtype: Any = None
) -> tuple[Any, Any, dict, dict]:
    """Return loss, logits, gradients of the cost and new running averages."""
    trained = {name: value for name, value in values.items() if is_trained(name)}
    averages = {name: value for name, value in values.items() if name not in trained}
    with_aux = jax.value_and_grad(cost, has_aux=True)
    (_, (loss, logits, new)), grads = with_aux(trained, averages, x, y, blocks, dtype)
    return loss, logits, grads, new


def scores(logits: Any, y: Any) -> tuple[Any, Any]:
    """Return how often the class is the first, and in the first five."""
    own = jnp.take_along_axis(logits, y[:, None], axis=1)
    place = (logits >= own).sum(axis=1)
    return (place == 1).mean(), (place <= 5).mean()


def step(
    values: dict,
    velocities: dict,
    x: Any,
    y: Any,
    rate: Any,
    blocks: Any = BLOCKS,
    dtype: Any = None,
) -> tuple[dict, dict, tuple]:
    """Return values and velocities after a step; and loss, top-1 and top-5."""
    loss, logits, grads, averages = gradients(values, x, y, blocks, dtype)
    moved, velocities = move(values, velocities, grads, rate)
    return moved | averages, velocities, (loss, *scores(logits, y))


def move(values: dict, velocities: dict, grads: dict, rate: Any) -> tuple[dict, dict]:
    """Return what is trained, and its velocities, after a step of Nesterov's."""
    moved, new = {}, {}
    for name, grad in grads.items():
        new[name] = MOMENTUM * velocities[name] - rate * grad
        moved[name] = values[name] + MOMENTUM * new[name] - rate * grad
    return moved, new
