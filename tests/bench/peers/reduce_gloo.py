"""All-reduces by torch.distributed on Gloo, in place."""

from contextlib import contextmanager

import torch
import torch.distributed as dist

from bench.reductions import Reduction, questions


@contextmanager
def opened(options, place):
    torch.set_num_threads(max(1, options.cores // place.size))
    dist.init_process_group(
        "gloo",
        init_method=f"file://{place.folder}/rendezvous",
        rank=place.rank,
        world_size=place.size,
    )

    def in_place(nbytes):
        values = torch.zeros(nbytes // 4)
        return Reduction(
            fill=values.fill_,
            call=lambda: dist.all_reduce(values),
            result=values.numpy,
        )

    yield questions(options, place, {"in place": in_place}, dist.barrier)
    dist.destroy_process_group()
