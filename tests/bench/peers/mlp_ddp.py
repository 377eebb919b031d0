"""The training step in torch's DistributedDataParallel on Gloo, a process per rank.

A process has its share of each batch. Its loss is the one over that share: averaging
the losses, which synk does, is not asked of it.
"""

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench import mlp

from .mlp_torch import load, network, stepper


@contextmanager
def opened(options, place):
    torch.set_num_threads(max(1, options.cores // place.size))
    dist.init_process_group(
        "gloo",
        init_method=f"file://{place.folder}/rendezvous",
        rank=place.rank,
        world_size=place.size,
    )
    rows, labels = map(torch.from_numpy, mlp.data(options))
    net = network(options)
    load(net, options)
    model = DistributedDataParallel(net, gradient_as_bucket_view=True)

    def batch_of(chosen):
        count = (chosen.stop - chosen.start) // place.size
        start = chosen.start + count * place.rank
        return rows[start : start + count], labels[start : start + count]

    yield mlp.questions(
        options, stepper(model), batch_of, lambda: load(net, options), dist.barrier
    )
    dist.destroy_process_group()
