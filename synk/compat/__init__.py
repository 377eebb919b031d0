"""Theano-MPI's model classes, trained on synk's ranks; mpi_learn's model files.

A class that was written for Theano-MPI's rules needs no change: its constructor, its
`compile_iter_fns`, `train_iter`, `val_iter` and the others of `contract` are called. ::

    script                  every rank, with the script's process

    rule = EASGD()
    rule.init(...)          keeps its arguments
    rule.wait()      ---->  builds the model, compiles its functions
      an epoch       ---->  train_iter, and exchanges after it
                     ---->  val_iter
                     ---->  adjust_hyperp
                     ---->  cleanup
    rule.model, rule.recorder

The script's process decides each step for all ranks, so that no rank waits for one that
has stopped. Exchanges are those of `synk.rules`.

The module is not imported with the package: ``from synk.compat import BSP``.
"""

from .keras import load_keras_json
from .recorder import Recorder
from .rules import BSP, EASGD, GOSGD

__all__ = ["BSP", "EASGD", "GOSGD", "Recorder", "load_keras_json"]
