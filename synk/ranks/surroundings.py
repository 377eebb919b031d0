"""What a script may have changed in its process since the zygote was made.

A rank has what its zygote had: the state of the script when that was forked, or that of
a new interpreter. It makes the present one its own before anything else.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
import warnings
from typing import Any, NamedTuple

import numpy as np

from . import settings


class Surroundings(NamedTuple):
    """What of a process does not follow from what it has imported.

    Attributes
    ----------
    environment : dict of str to str
    folder : str or None
        The working directory; None where it is gone.
    path : list of str
        Where modules are looked for.
    filters : list of tuple
        Of warnings: action, message, category, module and line.
    numpy_errors : dict of str to str
        What numpy does about a division by zero and the like.
    pytensor : dict of str to object
        PyTensor's settings.
    jax : dict of str to object
        JAX's, where it is used: the import of PyTensor's link to it sets some.
    """

    environment: dict[str, str]
    folder: str | None
    path: list[str]
    filters: list[tuple]
    numpy_errors: dict[str, Any]
    pytensor: dict[str, Any]
    jax: dict[str, Any]

    @classmethod
    def of_this_process(cls) -> Surroundings:
        """Return those of this process."""
        folder = None
        with contextlib.suppress(FileNotFoundError):
            folder = os.getcwd()
        return cls(
            dict(os.environ),
            folder,
            list(sys.path),
            [_written(entry) for entry in warnings.filters],
            dict(np.geterr()),
            settings.current(),
            _jax_settings() if _JAX_LINK in sys.modules else {},
        )

    def adopt(self) -> None:
        """Make them those of this process."""
        if os.environ != self.environment:
            os.environ.clear()
            os.environ.update(self.environment)
        if self.folder is not None:
            with contextlib.suppress(OSError):  # gone since
                os.chdir(self.folder)
        sys.path[:] = self.path
        if [_written(entry) for entry in warnings.filters] != self.filters:
            warnings.resetwarnings()
            for action, message, category, module, line in self.filters:
                # As they were given: None where nothing was.
                texts = {"message": message, "module": module}
                given: Any = {k: text for k, text in texts.items() if text is not None}
                warnings.filterwarnings(
                    action, category=category, lineno=line, append=True, **given
                )
        np.seterr(**self.numpy_errors)
        settings.follow(self.pytensor)
        if self.jax:
            importlib.import_module(_JAX_LINK)
            config = sys.modules["jax"].config
            for name, value in self.jax.items():
                if getattr(config, name) != value:
                    config.update(name, value)


_JAX_LINK = "pytensor.link.jax.dispatch"

_JAX_NAMES = (
    "jax_debug_nans",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_enable_x64",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
)
"""Those that decide what is computed. Of devices each rank has its own."""


def _jax_settings() -> dict[str, Any]:
    config = sys.modules["jax"].config
    return {name: getattr(config, name) for name in _JAX_NAMES if hasattr(config, name)}


def _written(entry: tuple) -> tuple:
    """Return a filter of warnings with its patterns as they were written."""
    return tuple(
        part.pattern if isinstance(part, re.Pattern) else part for part in entry
    )
