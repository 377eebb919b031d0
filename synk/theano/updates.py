"""`OrderedUpdates`: what `scan` returns beside its outputs."""

from .pytensor_versions import ordered_updates

__all__ = ["OrderedUpdates"]

OrderedUpdates = ordered_updates()
