"""Replies as bytes: what comes is what was given, arrays in the place of windows."""

from __future__ import annotations

import numpy as np

from synk.cluster.translate import FEW, dumps, loads
from synk.memory.segment import Attachments, Segment


def test_arrays_come_back_each_for_its_window():
    rng = np.random.default_rng(0)
    record = np.dtype([("a", "i4"), ("b", "f8")])
    arrays = [
        *(rng.normal(size=24) for _ in range(3)),  # alike: they travel together
        *(np.array(value) for value in (1.5, 2.5)),
        np.array([3.5]),
        *(rng.normal(size=(2, 3)).astype(">f4") for _ in range(2)),
        *(np.ones(2, record) for _ in range(2)),
        *(np.zeros((0, 4)) for _ in range(2)),
        *(rng.normal(size=FEW) for _ in range(2)),
        rng.normal(size=(3, 2)),
    ]
    with_windows = []
    segments = []
    for array in arrays:
        segment = Segment(max(1, array.nbytes))
        place = segment.array(array.dtype, array.shape)
        place[...] = array
        segments.append(segment)
        with_windows.append(({0: segment.window(place)}, 7))
    locate = Attachments().array
    found = loads(dumps([*with_windows, None, with_windows[0]], locate))
    assert found[-2] is None
    assert found[-1][0][0] is found[0][0][0]
    for (outputs, rows), array in zip(found[:-2], arrays, strict=True):
        assert rows == 7
        assert type(outputs[0]) is np.ndarray
        assert outputs[0].dtype == array.dtype
        assert outputs[0].shape == array.shape
        np.testing.assert_array_equal(outputs[0], array)
    assert loads(dumps([None, 3])) == [None, 3]
