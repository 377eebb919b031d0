"""`theano.scan_module.scan`: where `scan` is from."""

from .loops import scan

__all__ = ["scan"]
