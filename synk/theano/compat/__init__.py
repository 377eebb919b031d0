"""`theano.compat`: what Python lacked once."""

from collections import OrderedDict, defaultdict

__all__ = ["PY3", "OrderedDict", "defaultdict", "ifilter", "imap", "izip"]

PY3 = True
ifilter, imap, izip = filter, map, zip
