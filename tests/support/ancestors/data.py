"""Data objects: sizes, reserved memory and casts."""

import numpy as np
import theano

import synkhronos as synk

synk.fork(2)
floatX = theano.config.floatX
rng = np.random.RandomState(0)
first = rng.randn(5, 4).astype(floatX)

x = synk.data(first)
assert x.shape == (5, 4)
assert len(x) == 5
assert x.alloc_size >= 20
x[3] = 0
assert (x.data[3] == 0).all()
x[:] = first + 1
np.testing.assert_array_equal(x[2:4], first[2:4] + 1)

large, larger = rng.randn(2000, 10).astype(floatX), rng.randn(2100, 10).astype(floatX)
x.set_value(large, oversize=1.1)
reserved = x.alloc_size
assert x.size == 20000
assert 22000 <= reserved < 24000
x.set_value(larger)
assert x.alloc_size == reserved
np.testing.assert_array_equal(x.data, larger)
x.set_length(2000)
x[:] = large
np.testing.assert_array_equal(x.data, large)
x.set_value(first)
assert x.shape == (5, 4)
assert x.alloc_size == reserved
x.free_memory()
x.set_value(first)
assert x.alloc_size < reserved

counts = synk.data(np.zeros((2, 2), "int32"))
halves = np.full((3, 2), 1.5)
try:
    counts.set_value(halves)
except TypeError as error:
    assert "force_cast" in str(error)
else:
    raise AssertionError("1.5 was taken for an int32")
counts.set_value(halves, force_cast=True, oversize=2)
assert counts.dtype == "int32"
assert (counts.data == 1).all()

print("data: passed")
