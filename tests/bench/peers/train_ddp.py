"""The training step in torch's DistributedDataParallel on Gloo, a process per rank.

A process has its share of each batch. Its loss is the one over that share: averaging
the losses, which synk does, is not asked of it.
"""

from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench.work import questions

from .train_torch import prepared


@contextmanager
def opened(options, place):
    torch.set_num_threads(max(1, options.cores // place.size))
    dist.init_process_group(
        "gloo",
        init_method=f"file://{place.folder}/rendezvous",
        rank=place.rank,
        world_size=place.size,
    )
    wrap = partial(DistributedDataParallel, gradient_as_bucket_view=True)

    def share_of(chosen):
        count = (chosen.stop - chosen.start) // place.size
        start = chosen.start + count * place.rank
        return slice(start, start + count)

    def prepare(column):
        return prepared(options, column, wrap, share_of)

    yield questions(options.columns, prepare, dist.barrier)
    dist.destroy_process_group()
