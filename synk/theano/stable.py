"""FAST_COMPILE with the rewrites that keep logarithms finite, as Theano's had them.

``log(softmax(x))`` at logits of 1000 is -2844.8 in Theano's FAST_COMPILE, and minus
infinity in PyTensor's, which leaves these rewrites to FAST_RUN. Scripts of Theano's
time rely on them, so `theano` adds them when it is imported. Who does not import it has
PyTensor's FAST_COMPILE.
"""

from __future__ import annotations

from functools import cache

from pytensor.compile import predefined_modes, predefined_optimizers

__all__ = ["register"]

TAGS = ("stabilize", "log1p_neg_sigmoid", "local_mul_specialize")
"""What is added: a group of rewrites, one that is not tagged as its group is, and one
that has ``-1 * x`` written as ``-x``, which that one needs."""


@cache
def register() -> None:
    """Add the rewrites, to the mode and to the optimizers it is named by."""
    for name in ("fast_compile", "o1", "o2"):
        predefined_optimizers[name] = predefined_optimizers[name].including(*TAGS)
    # In place: "FAST_COMPILE" is one object in Theano's modules and in PyTensor's.
    mode = predefined_modes["FAST_COMPILE"]
    mode.__setstate__((mode.linker, mode.provided_optimizer.including(*TAGS)))
