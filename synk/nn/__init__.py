"""Building blocks of networks: convolution, pooling, normalisation, losses.

Convolution, pooling and patches are Ops with kernels in numpy and in JAX. The others
are graphs of PyTensor's own Ops.
"""

from . import rows  # noqa: F401  registers the Ops' rules for the proof
from .activations import (
    binary_crossentropy,
    categorical_crossentropy,
    elu,
    log_softmax,
    relu,
    selu,
    sigmoid_binary_crossentropy,
    softmax,
)
from .batchnorm import (
    batch_normalization_test,
    batch_normalization_train,
    local_response_normalization,
)
from .conv import (
    conv2d,
    conv2d_grad_wrt_inputs,
    conv2d_grad_wrt_weights,
    conv2d_transpose,
    conv3d,
    conv3d_grad_wrt_inputs,
    conv3d_grad_wrt_weights,
    conv3d_transpose,
)
from .neighbours import images2neibs, neibs2images
from .pool import pool_2d, pool_3d

__all__ = [
    "batch_normalization_test",
    "batch_normalization_train",
    "binary_crossentropy",
    "categorical_crossentropy",
    "conv2d",
    "conv2d_grad_wrt_inputs",
    "conv2d_grad_wrt_weights",
    "conv2d_transpose",
    "conv3d",
    "conv3d_grad_wrt_inputs",
    "conv3d_grad_wrt_weights",
    "conv3d_transpose",
    "elu",
    "images2neibs",
    "local_response_normalization",
    "log_softmax",
    "neibs2images",
    "pool_2d",
    "pool_3d",
    "relu",
    "selu",
    "sigmoid_binary_crossentropy",
    "softmax",
]
