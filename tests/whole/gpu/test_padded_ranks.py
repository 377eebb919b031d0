"""Padded calls on GPUs: the numbers of plain PyTensor, and few compilations."""

from __future__ import annotations

import pytest
from children import in_a_child
from test_gpu_padding import (  # noqa: F401  the same, where JAX is on a GPU
    check_epochs,
    test_jax_gives_for_padded_rows_what_pytensor_gives_without,
    test_what_one_rank_pads_compiles_and_explains,
)

from synk.workers.gpus import find_gpus


@pytest.mark.parametrize("n", [1, 2])
@in_a_child
def test_an_epoch_is_compiled_once_on_each_rank(n):
    count = len(find_gpus())
    check_epochs(n, devices=[rank % count for rank in range(n)])
