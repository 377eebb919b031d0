"""mpi_learn's model files: Keras models as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


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
