"""`theano.configparser`: `change_flags` and the options' object."""

from .configuration import Config, change_flags, config

__all__ = ["TheanoConfigParser", "change_flags", "config"]

TheanoConfigParser = Config
