"""`theano.gpuarray.dnn`: says that cuDNN is not available."""

from ..names_gpu import GPUARRAY
from ..not_activated import Answer, give
from .contexts import UNDEFINED, ContextNotDefined

__all__ = ["dnn_available", "dnn_present", "version"]

dnn_present = Answer("dnn_present", "PyGPU not available")
dnn_available = Answer("dnn_available", "PyGPU not available")


def version(raises: bool = True) -> int:
    """Return -1, or raise that there is no cuDNN whose version could be told."""
    if raises:
        raise RuntimeError(
            "We can't determine the cudnn version as it is not available",
            dnn_present.msg,
        )
    return -1


__getattr__, __dir__ = give(__name__, GPUARRAY["dnn"], ContextNotDefined, UNDEFINED)
