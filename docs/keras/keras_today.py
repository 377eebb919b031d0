"""What Keras 2 misses in Python 3.10, NumPy 2 and h5py 3: import this before it."""

import collections
import collections.abc

import h5py
import numpy as np

collections.Container = collections.abc.Container
collections.Iterable = collections.abc.Iterable
collections.Mapping = collections.abc.Mapping
collections.Sequence = collections.abc.Sequence

np.Inf, np.string_, np.unicode_ = np.inf, np.bytes_, np.str_


class Text(str):
    """What Keras decodes, as if it were bytes."""

    def decode(self, encoding="utf-8"):
        return str(self)


read = h5py.AttributeManager.__getitem__


def read_text(self, name):
    value = read(self, name)
    if isinstance(value, str):
        return Text(value)
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [Text(one) for one in value]
    return value


h5py.AttributeManager.__getitem__ = read_text
