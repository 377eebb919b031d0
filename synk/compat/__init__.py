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

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .recorder import Recorder
from .rules import BSP, EASGD, GOSGD

__all__ = ["BSP", "EASGD", "GOSGD", "Recorder", "load_keras_json"]


def load_keras_json(
    path: str | Path,
    weights: str | Path | None = None,
    custom_objects: Mapping[str, Any] | None = None,
) -> Any:
    """Return the Keras model that a JSON file describes, as mpi_learn's drivers do.

    This imports Keras 2, whose backend must be Theano's (``KERAS_BACKEND=theano``).
    After ``model.compile(...)``, :class:`synk.Trainer` takes the model as a step.

    Parameters
    ----------
    path : str or Path
        A file with the text of ``model.to_json()``.
    weights : str or Path, optional
        A file of ``model.save_weights``; by default weights are drawn.
    custom_objects : dict of str to class or function, optional
        Objects named in the file that are not Keras's own.

    Returns
    -------
    keras.models.Model

    Raises
    ------
    ImportError
        If Keras is missing, or needs other versions: see :doc:`keras`.
    ValueError
        If the file describes no model.
    """
    from keras.models import model_from_json

    text = Path(path).read_text()
    described = json.loads(text)
    if not isinstance(described, dict) or "class_name" not in described:
        raise ValueError(f"{path} describes no Keras model: it has no class_name")
    model = model_from_json(text, custom_objects=dict(custom_objects or {}))
    if weights is not None:
        model.load_weights(str(weights))
    return model
