"""Theano's options that mean nothing on PyTensor: they can be read and set."""

from __future__ import annotations

from typing import Any

__all__ = ["ONLY_THEANO"]

_FALSE = """
    force_device nocleanup nvcc.fastmath experimental.unpickle_gpu_on_cpu
    reoptimize_unpickled_function experimental.local_alloc_elemwise
    experimental.local_alloc_elemwise_assert cache_optimizations conv.assert_shape
    gpuarray.sync print_test_value scan.debug warn.argmax_pushdown_bug
    warn.gpu_set_subtensor1 warn.gpusum_01_011_0111_bug warn.identify_1pexp_bug
    warn.inc_set_subtensor1 warn.inc_subtensor1_opt warn.reduce_join warn.round
    warn.signal_conv2d_interface warn.subtensor_merge_bug warn.sum_div_dimshuffle_bug
    warn.sum_sum_bug warn.vm_gc_bug
"""

_TRUE = """
    print_active_device enable_initial_driver_test gpuarray.single_stream
    gpuelemwise.sync pickle_test_value tensor.local_elemwise_fusion
    gpu.local_elemwise_fusion
"""

_EMPTY = """
    init_gpu_device nvcc.flags cuda.root cuda.include_path contexts ctc.root
    dnn.base_path dnn.bin_path dnn.include_path dnn.library_path dnn.conv.workmem
    dnn.conv.workmem_bwd dnn.conv.algo_bwd gpuarray.cache_path magma.include_path
    magma.library_path metaopt.optimizer_excluding metaopt.optimizer_including
"""

ONLY_THEANO: dict[str, Any] = {
    **dict.fromkeys(_FALSE.split(), False),
    **dict.fromkeys(_TRUE.split(), True),
    **dict.fromkeys(_EMPTY.split(), ""),
    "device": "cpu",
    "assert_no_cpu_op": "ignore",
    "compute_test_value": "off",
    "compute_test_value_opt": "off",
    "deterministic": "default",
    "dnn.enabled": "False",
    "dnn.conv.algo_fwd": "small",
    "dnn.conv.algo_bwd_data": "none",
    "dnn.conv.algo_bwd_filter": "none",
    "dnn.conv.precision": "as_input_f32",
    "gpuarray.preallocate": -1.0,
    "gpuarray.sched": "default",
    "int_division": "int",
    "lib.cnmem": 0.0,
    "magma.enabled": "False",
    "metaopt.verbose": 0,
    "numpy.seterr_all": "ignore",
    "numpy.seterr_divide": "None",
    "numpy.seterr_invalid": "None",
    "numpy.seterr_over": "None",
    "numpy.seterr_under": "None",
    "unittests.rseed": "666",
    "warn.ignore_bug_before": "none",
}
"""By name, with their first values."""
