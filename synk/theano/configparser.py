"""`theano.configparser`: `change_flags` and the options' object."""

from .configuration import Config, config

__all__ = ["TheanoConfigParser", "change_flags", "config"]

TheanoConfigParser = Config
change_flags = config.change_flags
