"""`theano.compile.profiling`: what a profiled function has measured."""

from ..forwarding import forward

__getattr__, __dir__ = forward(
    __name__, "pytensor.compile.profiling", "pytensor.compile.debug.profiling"
)
