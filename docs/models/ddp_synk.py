"""Digits, by synk: ``python ddp_synk.py``."""

import numpy as np
import torch
from ddp import make_network
from sklearn.datasets import load_digits

import synk
import synk.torch


def train(epochs=5, batch_size=128):
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32")

    network = make_network()
    loss = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    step = synk.torch.step(network, loss, optimizer, [images, labels])
    x, y = synk.data(images), synk.data(labels)
    losses = []
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=torch.manual_seed(epoch)).numpy()
        batches = np.split(order, range(batch_size, len(order), batch_size))
        losses.extend(step.run(batches, x, y))
        scheduler.step()
    return losses, network


if __name__ == "__main__":
    synk.fork()
    train()
