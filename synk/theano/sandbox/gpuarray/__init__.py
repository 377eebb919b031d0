"""`theano.sandbox.gpuarray`: older place of `theano.gpuarray`, not activated either."""

import sys

from ... import gpuarray, names_gpu

# Its modules are those of `theano.gpuarray`, so that classes are the same ones.
for _name in names_gpu.GPUARRAY:
    sys.modules[f"{__name__}.{_name}"] = getattr(gpuarray, _name)


def __getattr__(name: str) -> object:
    return getattr(gpuarray, name)


def __dir__() -> list[str]:
    return dir(gpuarray)
