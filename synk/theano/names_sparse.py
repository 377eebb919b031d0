"""Names of `theano.sparse`."""

from .names_section import Section

SECTIONS = [
    Section(
        "Sparse matrices",
        "theano.sparse",
        same="CSC CSM CSR add as_sparse as_sparse_or_tensor_variable "
        "as_sparse_variable bsr_matrix cast ceil clean col_scale conj "
        "construct_sparse_from_list csc_from_dense csc_dmatrix csc_fmatrix csc_matrix "
        "csm_data csm_indices csm_indptr csm_properties csm_shape csr_from_dense "
        "csr_dmatrix csr_fmatrix csr_matrix deg2rad dense_from_sparse diag dot "
        "ensure_sorted_indices eq expm1 floor ge gt hstack le log1p lt mul mul_s_v neg "
        "neq rad2deg remove0 rint row_scale sampling_dot shared sin sinh sp_ones_like "
        "sp_sum sp_zeros_like sparse_formats sqr sqrt square_diagonal "
        "structured_add structured_add_s_v structured_dot structured_exp "
        "structured_log structured_maximum structured_minimum structured_pow "
        "structured_sigmoid sub tan tanh arcsin arcsinh arctan arctanh transpose "
        "true_dot trunc usmm vstack",
        mapped={
            "SparseType": "SparseTensorType",
            "SparseConstant SparseVariable": "sparse.variable",
            "constant": "as_sparse",
            "sgn": "sign",
            "sparse_grad": "a dense gradient where PyTensor has no other",
            "structured_monoid": "structured_elemwise",
        },
        written={"enable_sparse": "True"},
        at="pytensor.sparse",
    ),
]
