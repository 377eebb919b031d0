"""ResNet-50's training step in torch: a reference. Names are those of the demo."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from resnet_jax import AVERAGED, DECAY, DEVIATION, EPSILON, MEAN, MOMENTUM, is_trained
from torch.nn import functional as F


class Network:
    """One pass through the network, in which torch updates the running averages."""

    def __init__(self, values: dict[str, np.ndarray], training: bool) -> None:
        self.values = {name: torch.tensor(value) for name, value in values.items()}
        self.training = training
        for name in filter(is_trained, values):
            self.values[name].requires_grad_()

    def conv(self, x: Any, name: str, stride: int) -> Any:
        v = self.values
        w = v[f"{name}.W"]
        x = F.conv2d(x, w, stride=stride, padding=w.shape[-1] // 2)
        kinds = ("mean", "variance", "gamma", "beta")
        arguments = [v[f"{name}.norm.{kind}"] for kind in kinds]
        options = {"training": self.training, "momentum": AVERAGED, "eps": EPSILON}
        return F.batch_norm(x, *arguments, **options)

    def block(self, x: Any, name: str, stride: int) -> Any:
        shortcut = x
        if f"{name}.shortcut.W" in self.values:
            shortcut = self.conv(x, f"{name}.shortcut", stride)
        x = F.relu(self.conv(x, f"{name}.conv1", 1))
        x = F.relu(self.conv(x, f"{name}.conv2", stride))
        return F.relu(shortcut + self.conv(x, f"{name}.conv3", 1))

    def logits(self, images: np.ndarray, blocks: Any) -> Any:
        dtype = self.values["dense.W"].dtype
        mean, deviation = (
            torch.tensor(numbers, dtype=dtype)[:, None, None]
            for numbers in (MEAN, DEVIATION)
        )
        x = (torch.tensor(images).to(dtype) - mean) / deviation
        x = F.max_pool2d(F.relu(self.conv(x, "stem", 2)), 3, stride=2, padding=1)
        for stage, number in enumerate(blocks):
            for i in range(number):
                stride = 2 if stage > 0 and i == 0 else 1
                x = self.block(x, f"block{stage + 1}.{i + 1}", stride)
        return x.mean((2, 3)) @ self.values["dense.W"] + self.values["dense.b"]


def step(values: dict, x: Any, y: Any, rate: float, blocks: Any) -> tuple:
    """Return loss, logits, gradients, and all values after the first step.

    The optimiser is torch's own; its momentum is the same after one step up to a scale
    by the rate, which here is constant.
    """
    network = Network(values, training=True)
    logits = network.logits(x, blocks)
    loss = F.cross_entropy(logits, torch.tensor(y).long())
    squares = sum(
        (value**2).sum() for name, value in network.values.items() if name[-2:] == ".W"
    )
    trained = {n: v for n, v in network.values.items() if is_trained(n)}
    optimiser = torch.optim.SGD(
        trained.values(), lr=rate, momentum=MOMENTUM, nesterov=True
    )
    (loss + DECAY / 2 * squares).backward()
    grads = {name: value.grad.numpy().copy() for name, value in trained.items()}
    optimiser.step()
    after = {name: value.detach().numpy() for name, value in network.values.items()}
    return loss.item(), logits.detach().numpy(), grads, after


def evaluated(values: dict, x: Any, blocks: Any) -> np.ndarray:
    """Return the logits by the running averages."""
    with torch.no_grad():
        return Network(values, training=False).logits(x, blocks).numpy()
