"""All-reduces by MPI, in place and from one buffer to another."""

from contextlib import contextmanager

import numpy as np
from mpi4py import MPI

from bench.reductions import Reduction, questions

VERSIONS = {"MPI": MPI.Get_library_version().split(",")[0].strip()}


@contextmanager
def opened(options, place):
    comm = MPI.COMM_WORLD

    def in_place(nbytes):
        values = np.zeros(nbytes // 4, "float32")
        return Reduction(
            fill=values.fill,
            call=lambda: comm.Allreduce(MPI.IN_PLACE, values),
            result=lambda: values,
        )

    def two_buffers(nbytes):
        values = np.zeros(nbytes // 4, "float32")
        results = np.zeros_like(values)
        return Reduction(
            fill=values.fill,
            call=lambda: comm.Allreduce(values, results),
            result=lambda: results,
        )

    variants = {"in place": in_place, "two buffers": two_buffers}
    yield questions(options, place, variants, comm.Barrier)
