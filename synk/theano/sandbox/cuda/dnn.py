"""`theano.sandbox.cuda.dnn`: says that cuDNN is not available."""

from ...names_gpu import CUDA
from ...not_activated import Answer, give

__all__ = ["dnn_available", "version"]

dnn_available = Answer("dnn_available", "CUDA not available")


def version() -> int:
    """Raise that there is no cuDNN whose version could be told."""
    raise RuntimeError(
        "We can't determine the cudnn version as it is not available",
        dnn_available.msg,
    )


__getattr__, __dir__ = give(__name__, CUDA["dnn"], RuntimeError, dnn_available.msg)
