"""Digits, by DistributedDataParallel: ``torchrun --nproc-per-node 2 ddp.py``."""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def make_network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10)
    )


def train(epochs=5, batch_size=128):
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images).float() / 16, torch.tensor(labels))
    sampler = DistributedSampler(data, seed=0)
    loader = DataLoader(data, batch_size // dist.get_world_size(), sampler=sampler)

    network = DistributedDataParallel(make_network())
    loss = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            value = loss(network(x), y)
            value.backward()
            optimizer.step()
            losses.append(value.item())  # of this process's rows
        scheduler.step()
    dist.destroy_process_group()
    return losses, network.module


if __name__ == "__main__":
    train()
