"""`theano.compat.python2x`: older place of `OrderedDict`."""

from . import OrderedDict, defaultdict

__all__ = ["OrderedDict", "defaultdict"]
