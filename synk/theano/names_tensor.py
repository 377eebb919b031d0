"""Names of `theano.tensor` and what lies below it, without networks."""

from .names_section import Section

_LETTERS = "bwilfdcz"
_TYPED = " ".join(
    f"{letter}{kind}"
    for letter in _LETTERS
    for kind in (
        *("scalar", "vector", "row", "col", "matrix"),
        *("tensor3", "tensor4", "tensor5"),
    )
)
_PLURAL = " ".join(
    f"{letter}{kind}"
    for letter in ("", *"ilfd")
    for kind in ["scalars", "vectors", "rows", "cols", "matrices"]
)

SECTIONS = [
    Section(
        "Tensors: variables",
        "theano.tensor",
        same=f"TensorConstant TensorType TensorSharedVariable "
        f"as_tensor_variable constant NotScalarConstantError {_TYPED} {_PLURAL}",
        mapped={
            "scalar vector row col matrix tensor3 tensor4 tensor5": (
                "dtype may be positional; takes broadcastable"
            ),
            "TensorVariable": "without shared variables and constants",
            "tensor": "arguments dtype, broadcastable, name",
            "shared": "takes broadcastable",
        },
        absent={
            "autocast_float autocast_int": ("see autocast_float_as of pytensor.scalar"),
            "CudaNdarrayType GpuArrayType": "arrays on GPUs are JAX's",
        },
        at="pytensor.tensor pytensor.tensor.type pytensor.tensor.exceptions "
        "pytensor.tensor.sharedvar",
    ),
    Section(
        "Tensors: shapes",
        "theano.tensor",
        same="shape specify_shape shape_padleft shape_padright shape_padaxis "
        "squeeze transpose swapaxes roll zeros_like ones_like "
        "zeros ones fill alloc eye identity_like concatenate join "
        "stacklists horizontal_stack vertical_stack get_vector_length "
        "arange mgrid ogrid second",
        mapped={
            "addbroadcast": "specify_broadcastable",
            "split": "takes n_splits by place, too",
            "stack": "takes the tensors themselves, too",
            "flatten": "takes outdim",
            "tile": "takes ndim",
            "repeat": "takes x",
            "reshape": "takes ndim by place, too",
        },
        written={
            "patternbroadcast": "addbroadcast and unbroadcast by a pattern",
            "Rebroadcast": "the same by (axis, bool)",
            "unbroadcast": "forgets that a length is 1",
        },
        at="pytensor.tensor",
    ),
    Section(
        "Tensors: reductions",
        "theano.tensor",
        same="max argmax max_and_argmax min argmin sum prod var std all any ptp "
        "cumsum cumprod bincount diff unique largest smallest",
        mapped={"mean": "takes op, which means nothing"},
        absent={"MaxAndArgmax": "use max_and_argmax"},
        at="pytensor.tensor pytensor.tensor.extra_ops",
    ),
    Section(
        "Tensors: indexing",
        "theano.tensor",
        same="set_subtensor inc_subtensor take nonzero nonzero_values "
        "flatnonzero compress searchsorted sort argsort diagonal tril triu tri "
        "fill_diagonal fill_diagonal_offset permute_row_elements inverse_permutation "
        "ravel_multi_index to_one_hot extract_diag",
        mapped={
            "choose": "takes out",
            "diag": "takes x",
            "unravel_index": "takes ndim",
        },
        written={
            "topk": "the largest elements along an axis, by sorting",
            "argtopk": "their indices",
            "topk_and_argtopk": "both",
        },
        at="pytensor.tensor pytensor.tensor.extra_ops pytensor.tensor.basic",
    ),
    Section(
        "Tensors: elementwise",
        "theano.tensor",
        same="real imag lt gt le ge eq neq isnan isinf isclose allclose switch "
        "where clip and_ or_ xor invert bitwise_and bitwise_or bitwise_xor bitwise_not "
        "angle exp expm1 exp2 log log2 log10 log1p maximum minimum neg "
        "ceil floor round iround trunc sqr sqrt cos sin tan cosh sinh tanh arccos "
        "arcsin arctan arctan2 arccosh arcsinh arctanh erf erfc erfinv erfcinv erfcx "
        "gamma gammaln psi tri_gamma chi2sf gammainc gammaincc gammau gammal "
        "j0 j1 jv i0 i1 iv deg2rad rad2deg complex complex_from_polar "
        "pow power sgn int_div floor_div true_div mod add sub mul "
        "ceil_intdiv bartlett cpu_contiguous",
        written={"cast": "floats too large for a narrow integer wrap around"},
        mapped={
            "conj": "takes z",
            "abs_": "abs",
            "inv": "reciprocal",
            "rint": "round, halves to even",
        },
        absent={
            "logical_and logical_or": "use ``and_`` and ``or_`` of booleans",
        },
        at="pytensor.tensor pytensor.tensor.extra_ops",
    ),
    Section(
        "Tensors: linear algebra, gradients, the rest",
        "theano.tensor",
        same="outer tensordot grad jacobian hessian transfer",
        mapped={
            "Lop": "pullback",
            "Rop": "pushforward",
            "consider_constant": "zero_grad",
            "dot": "takes a and b",
            "get_scalar_constant_value": "takes orig_v",
            "trace": "takes X",
            "verify_grad": "rng may be left out",
        },
        written={
            "batched_dot batched_tensordot": "by matmul",
            "RandomStreams": "random streams by NumPy's generators",
        },
        absent={
            "load": "use numpy.load, and synk.data for what all ranks read",
            "mpi_send mpi_recv": "synk.ops.all_reduce exchanges values",
            "max_pool_2d": "theano.tensor.signal.pool.pool_2d",
        },
        at="pytensor.tensor pytensor.gradient",
    ),
    Section(
        "Extra Ops",
        "theano.tensor.extra_ops",
        same="bartlett bincount compress cpu_contiguous cumprod cumsum diff "
        "fill_diagonal fill_diagonal_offset ravel_multi_index searchsorted "
        "squeeze to_one_hot unique CpuContiguous CumOp FillDiagonal "
        "FillDiagonalOffset RavelMultiIndex Repeat SearchsortedOp Unique UnravelIndex",
        mapped={"repeat": "takes x", "unravel_index": "takes ndim"},
        absent={
            "CumsumOp CumprodOp": "use cumsum and cumprod",
            "DiffOp": "use diff",
            "BinCountOp": "use bincount",
            "SqueezeOp": "use squeeze",
        },
        at="pytensor.tensor.extra_ops",
    ),
    Section(
        "Rewrites and assertions",
        "theano.tensor.opt",
        same="Assert register_canonicalize register_specialize register_stabilize "
        "register_useless",
        mapped={"assert_": "assert_op"},
        at="pytensor.raise_op pytensor.tensor.rewriting.basic",
    ),
    Section(
        "Linear algebra of NumPy",
        "theano.tensor.nlinalg",
        same="MatrixInverse MatrixPinv Det Eig Eigh SVD TensorInv TensorSolve "
        "det eig extract_diag lstsq matrix_dot matrix_inverse matrix_power "
        "norm pinv svd tensorinv tensorsolve ",
        mapped={
            "alloc_diag": "diag",
            "diag": "takes x",
            "eigh": "takes the triangle second",
            "qr": '"reduced" unless asked',
            "trace": "takes X",
        },
        absent={
            "QRFull QRIncomplete": "use qr",
        },
        at="pytensor.tensor.linalg pytensor.tensor.nlinalg pytensor.tensor",
    ),
    Section(
        "Linear algebra of SciPy",
        "theano.tensor.slinalg",
        same="Cholesky Eigvalsh Expm Solve cholesky eigvalsh expm kron solve",
        written={
            "solve_lower_triangular": "solve_triangular(lower=True)",
            "solve_symmetric": 'solve(assume_a="sym")',
            "solve_upper_triangular": "solve_triangular(lower=False)",
        },
        absent={"CholeskyGrad ExpmGrad": "use grad"},
        at="pytensor.tensor.linalg pytensor.tensor.slinalg",
    ),
    Section(
        "Fourier transforms",
        "theano.tensor.fft",
        same="rfft irfft",
        at="pytensor.tensor.fft",
    ),
    Section(
        "Random streams",
        "theano.tensor.shared_randomstreams",
        written={"RandomStreams": "each draw has a NumPy generator of its own"},
        absent={"RandomStateSharedVariable": "generators are shared variables"},
    ),
    Section(
        "Random streams: methods",
        "theano.tensor.shared_randomstreams.RandomStreams",
        written={
            "binomial choice gen multinomial normal permutation poisson "
            "random_integers seed shuffle_row_elements uniform updates": "",
        },
    ),
    Section(
        "Random streams of MRG31k3p",
        "theano.sandbox.rng_mrg",
        written={"MRG_RandomStreams": "NumPy's generators under this name"},
        absent={
            "guess_n_streams multMatVect mrg_uniform": (
                "parts of the old generator; use MRG_RandomStreams"
            ),
        },
    ),
    Section(
        "Random streams of MRG31k3p: methods",
        "theano.sandbox.rng_mrg.MRG_RandomStreams",
        written={
            "binomial choice multinomial multinomial_wo_replacement normal rstate seed "
            "truncated_normal uniform updates": "",
        },
        absent={
            "get_substream_rstates inc_rstate set_rstate": (
                "states are NumPy generators, see state_updates"
            ),
        },
    ),
]
