"""Names of Theano's two GPU backends, by module: what could be imported without a GPU.

They are those of ``theano.gpuarray`` in Theano 1.0.5 and of ``theano.sandbox.cuda`` in
0.9, the last to have it, on a machine with neither CUDA nor pygpu.
"""

GPUARRAY = {
    "basic_ops": "CGpuKernelBase GpuAlloc GpuAllocEmpty GpuContiguous GpuEye "
    "GpuFromHost GpuJoin GpuKernelBase GpuReshape GpuSplit GpuToGpu GpuTri HostFromGpu "
    "Kernel as_gpuarray_variable empty_like gpu_alloc gpu_alloc_empty gpu_contiguous "
    "gpu_from_host gpu_join host_from_gpu infer_context_name",
    "blas": "BaseGpuCorr3dMM BaseGpuCorrMM BlasOp GpuCorr3dMM GpuCorr3dMM_gradInputs "
    "GpuCorr3dMM_gradWeights GpuCorrMM GpuCorrMM_gradInputs GpuCorrMM_gradWeights "
    "GpuDot22 GpuGemm GpuGemmBatch GpuGemv GpuGer gpu_dot22 gpugemm_inplace "
    "gpugemm_no_inplace gpugemmbatch_inplace gpugemmbatch_no_inplace gpugemv_inplace "
    "gpugemv_no_inplace gpuger_inplace gpuger_no_inplace",
    "blocksparse": "GpuSparseBlockGemv GpuSparseBlockOuter gpu_sparse_block_gemv "
    "gpu_sparse_block_gemv_inplace gpu_sparse_block_outer "
    "gpu_sparse_block_outer_inplace",
    "ctc": "GpuConnectionistTemporalClassification gpu_ctc",
    "dnn": "DnnBase DnnVersion GpuDnnBatchNorm GpuDnnBatchNormGrad "
    "GpuDnnBatchNormInference GpuDnnConv GpuDnnConvDesc GpuDnnConvGradI "
    "GpuDnnConvGradW GpuDnnDropoutOp GpuDnnPool GpuDnnPoolBase GpuDnnPoolDesc "
    "GpuDnnPoolGrad GpuDnnRNNGradInputs GpuDnnRNNGradWeights GpuDnnRNNOp "
    "GpuDnnReduction GpuDnnSoftmax GpuDnnSoftmaxBase GpuDnnSoftmaxGrad "
    "GpuDnnTransformerGradI GpuDnnTransformerGradT GpuDnnTransformerGrid "
    "GpuDnnTransformerSampler NoCuDNNRaise RNNBlock dnn_batch_normalization_test "
    "dnn_batch_normalization_train dnn_conv dnn_conv3d dnn_gradinput dnn_gradinput3d "
    "dnn_gradweight dnn_gradweight3d dnn_pool dnn_spatialtf dropout",
    "elemwise": "GpuCAReduce GpuCAReduceCPY GpuCAReduceCuda GpuDimShuffle GpuElemwise "
    "GpuErfcinv GpuErfinv gpu_ca_reduce_cuda gpu_erfcinv gpu_erfinv",
    "extra_ops": "GpuCumOp GpuCumsumOp",
    "fft": "CuIRFFTOp CuRFFTOp cuirfft cuirfft_op curfft curfft_op",
    "linalg": "GpuCholesky GpuCublasTriangularSolve GpuCusolverSolve GpuMagmaBase "
    "GpuMagmaCholesky GpuMagmaEigh GpuMagmaMatrixInverse GpuMagmaQR GpuMagmaSVD "
    "gpu_cholesky gpu_matrix_inverse gpu_qr gpu_solve gpu_solve_lower_triangular "
    "gpu_solve_upper_triangular gpu_svd",
    "multinomial": "GPUAChoiceFromUniform GPUAMultinomialFromUniform "
    "GPUAMultinomialWOReplacementFromUniform",
    "neighbours": "GpuImages2Neibs",
    "nnet": "GpuCrossentropySoftmax1HotWithBiasDx "
    "GpuCrossentropySoftmaxArgmax1HotWithBias GpuSoftmax GpuSoftmaxWithBias "
    "gpu_crossentropy_softmax_1hot_with_bias_dx "
    "gpu_crossentropy_softmax_argmax_1hot_with_bias gpu_softmax gpu_softmax_with_bias",
    "opt": "GraphToGPU InputToGpuOptimizer op_lifter register_inplace register_opt "
    "register_opt2 safe_to_cpu safe_to_gpu tensor_to_gpu",
    "pool": "GpuAveragePoolGrad GpuDownsampleFactorMaxGradGrad GpuMaxPoolGrad "
    "GpuMaxPoolRop GpuPool",
    "reduction": "GpuMaxAndArgmax",
    "rng_mrg": "GPUA_mrg_uniform",
    "sort": "GpuTopKOp",
    "subtensor": "GpuAdvancedBooleanIncSubtensor GpuAdvancedBooleanSubtensor "
    "GpuAdvancedIncSubtensor GpuAdvancedIncSubtensor1 GpuAdvancedIncSubtensor1_dev20 "
    "GpuAdvancedSubtensor GpuAdvancedSubtensor1 GpuAllocDiag GpuExtractDiag "
    "GpuIncSubtensor GpuSubtensor",
    "type": "GpuArrayConstant GpuArraySharedVariable GpuArraySignature GpuArrayType "
    "GpuArrayVariable GpuContextType gpuarray_shared_constructor move_to_gpu "
    "reg_context",
}

CUDA = {
    "basic_ops": "GpuAdvancedIncSubtensor1 GpuAdvancedIncSubtensor1_dev20 "
    "GpuAdvancedSubtensor1 GpuAlloc GpuAllocEmpty GpuCAReduce GpuContiguous "
    "GpuDimShuffle GpuElemwise GpuEye GpuFlatten GpuFromHost GpuIncSubtensor GpuJoin "
    "GpuReshape GpuShape GpuSplit GpuSubtensor HostFromGpu as_cuda_array "
    "as_cuda_ndarray_variable col gpu_alloc gpu_alloc_empty gpu_contiguous gpu_eye "
    "gpu_flatten gpu_from_host gpu_join gpu_shape host_from_gpu matrix row scalar "
    "tensor3 tensor4 vector",
    "blas": "BaseGpuCorr3dMM BaseGpuCorrMM GpuBatchedDot GpuConv GpuCorr3dMM "
    "GpuCorr3dMM_gradInputs GpuCorr3dMM_gradWeights GpuCorrMM GpuCorrMM_gradInputs "
    "GpuCorrMM_gradWeights GpuDot22 GpuDot22Scalar GpuDownsampleFactorMax "
    "GpuDownsampleFactorMaxGrad GpuDownsampleFactorMaxGradGrad GpuGemm GpuGemv GpuGer "
    "batched_dot gpu_dot22 gpu_dot22scalar gpu_gemm_inplace gpu_gemm_no_inplace "
    "gpu_gemv_inplace gpu_gemv_no_inplace gpu_ger_inplace gpu_ger_no_inplace",
    "blocksparse": GPUARRAY["blocksparse"],
    "cula": "GpuSolve gpu_solve",
    "dnn": "DnnBase GpuDnnBatchNorm GpuDnnBatchNormBase GpuDnnBatchNormGrad "
    "GpuDnnBatchNormInference GpuDnnConv GpuDnnConv3d GpuDnnConv3dGradI "
    "GpuDnnConv3dGradW GpuDnnConvDesc GpuDnnConvGradI GpuDnnConvGradW GpuDnnPool "
    "GpuDnnPoolDesc GpuDnnPoolGrad GpuDnnSoftmax GpuDnnSoftmaxBase GpuDnnSoftmaxGrad "
    "NoCuDNNRaise dnn_batch_normalization_test dnn_batch_normalization_train dnn_conv "
    "dnn_conv3d dnn_gradinput dnn_gradinput3d dnn_gradweight dnn_gradweight3d dnn_pool",
    "elemwise": "ErfcxGPU ErfinvGPU erfcx_gpu erfinv_gpu",
    "fftconv": "BatchedComplexDotOp CuFFTOp CuIFFTOp ScikitsCudaOp batched_complex_dot "
    "conv2d_fft conv3d_fft cufft cuifft",
    "neighbours": "GpuImages2Neibs gpu_images2neibs",
    "nnet": GPUARRAY["nnet"],
    "nvcc_compiler": "NVCC_compiler",
    "rng_curand": "CURAND_Base CURAND_Normal CURAND_RandomStreams CURAND_Uniform",
    "type": "CudaNdarrayType",
    "var": "CudaNdarrayConstant CudaNdarrayConstantSignature CudaNdarraySharedVariable "
    "CudaNdarrayVariable cuda_shared_constructor float32_shared_constructor",
}
