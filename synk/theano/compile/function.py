"""`theano.compile.function`: where `function` is from."""

from ..functions import function

__all__ = ["function"]
