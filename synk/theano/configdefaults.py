"""`theano.configdefaults`: the options' object."""

from .configuration import config

__all__ = ["config"]
