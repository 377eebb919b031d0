"""`theano.ifelse`: the lazy conditional, PyTensor's."""

try:
    from pytensor.conditional.op import IfElse, ifelse
except ImportError:  # PyTensor before 3.3
    from pytensor.ifelse import IfElse, ifelse  # type: ignore[no-redef]

__all__ = ["IfElse", "ifelse"]
