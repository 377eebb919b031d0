"""Rows repeated, tiled, reshaped, rolled, joined, cumulated, beside plain PyTensor."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.signal import convolve1d

import synk

ROWS = 20  # 7, 7 and 6 on three ranks
RNG = np.random.default_rng(34)
X, WIDE = RNG.normal(size=(ROWS, 3)), RNG.normal(size=(ROWS, 2, 5))


def graphs():
    x, wide = pt.matrix("x"), pt.tensor3("wide")
    w, k = (pytensor.shared(RNG.normal(size=n)) for n in (3, 5))
    f, two = x @ w, pt.outer(x @ w, k[:2])
    made = [
        *(pt.repeat(f, 4), pt.repeat(two, 3, axis=0), pt.tile(f, 3)),
        *(pt.tile(two, (2, 1)), two.flatten(), two.T.flatten()),
        *(f.reshape((-1, 4)), f.reshape((-1, 4)).sum(axis=1)),
        *(pt.concatenate([f[:8], pt.exp(f[8:])]), pt.concatenate([f, f**2])),
        *(pt.einsum("nak,k->na", wide, k), pt.einsum("ni,ni->n", x, x * w)),
        *(f + f[::-1], f + pt.roll(f, 2), pt.diff(f), pt.cumsum(two, axis=0)),
        f - pt.log(pt.cumsum(pt.exp(f)[::-1])[::-1]),
        convolve1d(pt.concatenate([pt.zeros(2), f]), k[:3], mode="valid"),
    ]
    loss = sum((each**2).mean() for each in made)
    return [x, wide], [*made, *pt.grad(loss, [w, k])]


@pytest.mark.filterwarnings("ignore::synk.SplitWarning")
def test_arranged_rows_and_their_gradients_are_those_of_one_process():
    inputs, outputs = graphs()
    expected = pytensor.function(inputs, outputs, mode="FAST_COMPILE")(X, WIDE)
    with synk.session(3):
        f = synk.function(inputs, outputs, mode="FAST_COMPILE")
        found = f(X, WIDE)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)
