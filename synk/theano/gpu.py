"""Theano's two GPU backends, `gpuarray` and `sandbox.cuda`, as names that raise in use.

In a Theano without a GPU these modules existed, and scripts depend on it: they import
``dnn_conv`` at the top and call ``dnn_available()`` later, or test for
``GpuArrayType``. Names can be imported, and Ops be made; applying them raises.
"""

from __future__ import annotations

import warnings
from typing import Any

_INSTEAD = (
    "Theano's GPU backend is not activated here. theano.tensor has the same on the CPU"
    ' (nnet.conv2d, signal.pool), and whole graphs run on GPUs through mode="JAX"'
)

_DNN = (
    "GpuDnnBatchNorm GpuDnnConv GpuDnnConvDesc GpuDnnConvGradI GpuDnnConvGradW"
    " GpuDnnPool GpuDnnSoftmax dnn_batch_normalization_test"
    " dnn_batch_normalization_train dnn_conv dnn_conv3d dnn_gradinput dnn_gradweight"
    " dnn_pool"
)
_BASIC_OPS = (
    "GpuAlloc GpuAllocEmpty GpuContiguous GpuFromHost GpuJoin GpuReshape HostFromGpu"
    " gpu_alloc gpu_alloc_empty gpu_contiguous gpu_from_host gpu_join host_from_gpu"
)
_BLAS = "GpuCorr3dMM GpuCorrMM GpuCorrMM_gradInputs GpuCorrMM_gradWeights"
_BLAS += " GpuDot22 GpuGemm GpuGemv GpuGer"

NAMES = {
    "gpuarray": "",
    "gpuarray.basic_ops": f"{_BASIC_OPS} as_gpuarray_variable infer_context_name",
    "gpuarray.blas": _BLAS,
    "gpuarray.dnn": _DNN,
    "gpuarray.elemwise": "GpuCAReduceCuda GpuDimShuffle GpuElemwise",
    "gpuarray.pool": "GpuPool",
    "gpuarray.type": "GpuArrayConstant GpuArraySharedVariable GpuArrayType"
    " GpuArrayVariable gpuarray_shared_constructor",
    "sandbox.cuda": "GpuOp",
    "sandbox.cuda.basic_ops": f"{_BASIC_OPS} GpuDimShuffle GpuElemwise as_cuda_array"
    " as_cuda_ndarray_variable",
    "sandbox.cuda.blas": _BLAS,
    "sandbox.cuda.dnn": _DNN,
    "sandbox.cuda.type": "CudaNdarrayType",
    "sandbox.cuda.var": "CudaNdarrayConstant CudaNdarraySharedVariable"
    " CudaNdarrayVariable cuda_shared_constructor float32_shared_constructor",
}
"""The names of each module that raise in use: those that scripts import."""

PACKAGES = "gpuarray", "sandbox.cuda", "sandbox.gpuarray"


def missing(name: str) -> str | None:
    """Return a message for a missing name of a GPU backend; None for other names."""
    is_theirs = name.startswith(tuple(f"theano.{package}." for package in PACKAGES))
    return f"no {name}: {_INSTEAD}" if is_theirs else None


class ContextNotDefined(ValueError):
    """No GPU has this name."""


def get_context(name: Any) -> Any:
    """Raise ContextNotDefined: there are no contexts."""
    raise ContextNotDefined(f"context name {name} not defined")


def use(device: str, *_: Any, **__: Any) -> None:
    """Warn that `device` is not used, unless it is the CPU; the script goes on."""
    if device != "cpu":
        warnings.warn(
            f"use({device!r}): Theano's GPU backend is not here, and the script goes on"
            " without it. Graphs run on GPUs in JAX mode: THEANO_FLAGS=mode=JAX, or"
            ' mode="JAX" in a function',
            stacklevel=2,
        )


def _answer(name: str, msg: str) -> Any:
    """Return a function such as `dnn_available`: False, and its `msg` says why."""

    def answer(context_name: Any = None) -> bool:
        return False

    answer.__name__ = name
    vars(answer).update(msg=msg, avail=False)
    return answer


def version(raises: bool = True) -> int:
    """Raise RuntimeError, as there is no cuDNN; or return -1 if not `raises`."""
    if raises:
        raise RuntimeError(
            "We can't determine the cudnn version as it is not available", _PYGPU
        )
    return -1


_CUDA, _PYGPU = "CUDA not available", "PyGPU not available"
_CONTEXTS = {"ContextNotDefined": ContextNotDefined, "get_context": get_context}
_OTHERS: dict[str, dict[str, Any]] = {
    "gpuarray": {
        "pygpu": None,
        "pygpu_activated": False,
        "init_dev": use,
        "use": use,
        **_CONTEXTS,
    },
    "gpuarray.dnn": {
        "dnn_available": _answer("dnn_available", _PYGPU),
        "dnn_present": _answer("dnn_present", _PYGPU),
        "version": version,
    },
    "gpuarray.type": _CONTEXTS,
    "sandbox.cuda": {
        "cuda_available": False,
        "cuda_enabled": False,
        "dnn_available": (answer := _answer("dnn_available", _CUDA)),
        "dnn_version": version,
        "use": use,
    },
    "sandbox.cuda.dnn": {"dnn_available": answer, "version": version},
}
"""The other names of each module, which do not raise."""


def names_in(module: str) -> dict[str, Any]:
    """Return the names of a module in `NAMES`: ``names_in("gpuarray.dnn")``."""
    is_old = module.startswith("sandbox.cuda")
    error: type[Exception] = RuntimeError if is_old else ContextNotDefined
    said = _CUDA if is_old else "Could not infer context from inputs"
    standing_in = {
        name: _stand_in(module, name, error, f"theano.{module}.{name}: {said}")
        for name in NAMES[module].split()
    }
    return standing_in | _OTHERS.get(module, {})


def _stand_in(module: str, name: str, error: type[Exception], message: str) -> Any:
    """Return a function or type that raises when called, or an Op that does so."""

    def used(*_: Any, **__: Any) -> Any:
        raise error(f"{message}. {_INSTEAD}")

    place = f"synk.theano.{module}"
    if name[0].islower():
        used.__name__, used.__qualname__, used.__module__ = name, name, place
        return used
    body: dict[str, Any] = {"__module__": place, "__doc__": message}
    if name.endswith(("Type", "Variable", "Constant")):
        return type(name, (), {**body, "__init__": used})
    made = {"__init__": lambda self, *_, **__: None, "__call__": used}
    return type(name, (), body | made)
