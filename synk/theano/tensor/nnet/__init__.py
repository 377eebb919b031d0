"""`theano.tensor.nnet`: network functions.

Convolution, batch normalisation and neighbours are those of `synk.nn`.
"""

from ...forwarding import forward
from . import abstract_conv, blocksparse, bn, conv, neighbours, nnet, sigm
from .abstract_conv import (
    bilinear_upsampling,
    conv2d,
    conv2d_grad_wrt_inputs,
    conv2d_grad_wrt_weights,
    conv2d_transpose,
    conv3d,
    frac_bilinear_upsampling,
)
from .bn import (
    batch_normalization,
    batch_normalization_test,
    batch_normalization_train,
)
from .crossentropies import (
    binary_crossentropy,
    categorical_crossentropy,
    confusion_matrix,
    crossentropy_categorical_1hot,
    crossentropy_softmax_1hot,
    crossentropy_softmax_1hot_with_bias,
    crossentropy_softmax_argmax_1hot_with_bias,
    crossentropy_softmax_max_and_argmax_1hot,
    crossentropy_softmax_max_and_argmax_1hot_with_bias,
    sigmoid_binary_crossentropy,
)
from .nnet import (
    elu,
    h_softmax,
    hard_sigmoid,
    logsoftmax,
    prepend_0_to_each_row,
    prepend_1_to_each_row,
    prepend_scalar_to_each_row,
    relu,
    selu,
    sigmoid,
    softmax,
    softmax_graph,
    softmax_with_bias,
    softplus,
    softsign,
    ultra_fast_sigmoid,
)

__getattr__, __dir__ = forward(__name__)
