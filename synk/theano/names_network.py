"""Names of `theano.tensor.nnet` and `theano.tensor.signal`."""

from .names_section import Section

_NN = "the Op of synk.nn"

SECTIONS = [
    Section(
        "Networks",
        "theano.tensor.nnet",
        same="sigmoid softplus",
        mapped={
            "softmax": "along the last axis; a vector is a matrix of one row",
            "logsoftmax": "log_softmax, in the same way",
        },
        written={
            "batch_normalization": "with given statistics",
            "batch_normalization_train batch_normalization_test": _NN,
            "bilinear_upsampling": "whole ratios",
            "binary_crossentropy": "",
            "categorical_crossentropy": "of distributions or of columns",
            "confusion_matrix": "",
            "conv2d conv3d conv2d_transpose": _NN,
            "conv2d_grad_wrt_inputs conv2d_grad_wrt_weights": _NN,
            "crossentropy_categorical_1hot": "",
            "crossentropy_softmax_1hot crossentropy_softmax_1hot_with_bias": "",
            "crossentropy_softmax_argmax_1hot_with_bias": "",
            "crossentropy_softmax_max_and_argmax_1hot": "",
            "crossentropy_softmax_max_and_argmax_1hot_with_bias": "",
            "elu": "",
            "frac_bilinear_upsampling": "says that only whole ratios are possible",
            "h_softmax": "two levels",
            "hard_sigmoid": "",
            "prepend_0_to_each_row prepend_1_to_each_row": "",
            "prepend_scalar_to_each_row": "",
            "relu": "",
            "selu": "",
            "sigmoid_binary_crossentropy": "",
            "softmax_graph": "",
            "softmax_with_bias": "",
            "softsign": "",
            "ultra_fast_sigmoid": "",
        },
        absent={
            "ctc": "Theano had it by Baidu's warp-ctc",
            "conv3D convGrad3D convTransp3D": "use conv3d and its gradients",
            "separable_conv2d separable_conv3d causal_conv1d": (
                "use conv2d and conv3d with num_groups, filter_dilation"
            ),
            "unfold_conv": "use images2neibs",
        },
        at="pytensor.tensor",
    ),
    Section(
        "Networks: convolution",
        "theano.tensor.nnet.abstract_conv",
        written={
            "conv2d conv2d_grad_wrt_inputs conv2d_grad_wrt_weights "
            "conv2d_transpose conv3d conv3d_grad_wrt_inputs "
            "conv3d_grad_wrt_weights": _NN,
            "bilinear_kernel_1D bilinear_kernel_2D": "",
            "bilinear_upsampling frac_bilinear_upsampling": "",
            "AbstractConv2d AbstractConv2d_gradInputs AbstractConv2d_gradWeights "
            "AbstractConv3d AbstractConv3d_gradInputs AbstractConv3d_gradWeights": (
                "callables, by the functions of synk.nn"
            ),
        },
    ),
    Section(
        "Networks: the first convolution",
        "theano.tensor.nnet.conv",
        written={"conv2d": "with the arguments of nnet.conv2d of old"},
        absent={"ConvOp": "use conv2d"},
    ),
    Section(
        "Networks: volumes, time first",
        "theano.tensor.nnet.conv3d2d",
        written={"conv3d": _NN},
    ),
    Section(
        "Networks: batch normalisation",
        "theano.tensor.nnet.bn",
        written={
            "batch_normalization": "with given statistics",
            "batch_normalization_train batch_normalization_test": _NN,
        },
    ),
    Section(
        "Networks: blocks",
        "theano.tensor.nnet.blocksparse",
        written={
            "sparse_block_dot sparse_block_gemv sparse_block_outer": "by indexing",
        },
    ),
    Section(
        "Networks: neighbours",
        "theano.tensor.nnet.neighbours",
        written={"images2neibs neibs2images": _NN},
        absent={"Images2Neibs": "use images2neibs"},
    ),
    Section(
        "Signals: pooling",
        "theano.tensor.signal.pool",
        written={
            "pool_2d pool_3d": _NN,
            "max_pool_2d_same_size": "all but the largest set to 0",
        },
        absent={"Pool": "use pool_2d"},
    ),
    Section(
        "Signals: pooling of old",
        "theano.tensor.signal.downsample",
        written={
            "max_pool_2d": "pool_2d with the older arguments",
            "max_pool_2d_same_size": "",
        },
        absent={"DownsampleFactorMax": "use pool.pool_2d"},
    ),
    Section(
        "Signals: convolution",
        "theano.tensor.signal.conv",
        written={"conv2d": "images without channels"},
    ),
]
