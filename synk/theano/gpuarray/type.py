"""`theano.gpuarray.type`: contexts, of which there are none, and types of variables."""

from ..names_gpu import GPUARRAY
from ..not_activated import give
from .contexts import UNDEFINED, ContextNotDefined, get_context, list_contexts

__all__ = ["ContextNotDefined", "get_context", "list_contexts"]

__getattr__, __dir__ = give(__name__, GPUARRAY["type"], ContextNotDefined, UNDEFINED)
