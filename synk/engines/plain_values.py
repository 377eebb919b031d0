"""Values of shared variables as a script sees them: never JAX's arrays, but numpy's.

A function in JAX mode leaves JAX's arrays in the variables that it updates. PyTensor's
``get_value()`` would return them, and they cannot be written to; which engine makes a
call is not the script's affair. What PyTensor calls the internal type is still there
for who asks for it (``return_internal_type=True``). With ``borrow=True`` the array may
be one that can only be read.

`SharedVariable.get_value` is replaced, as it is in PyTensor 2.38 to 3.3;
``test_shared_variables_held.py`` tells when that is not needed any more.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import numpy as np
from pytensor.compile import SharedVariable

_get_value = SharedVariable.get_value


def is_foreign(value: Any) -> bool:
    """Tell whether a value is an array of another package's, as JAX's are."""
    return not isinstance(value, (np.ndarray, np.generic)) and hasattr(
        value, "__array__"
    )


@wraps(_get_value)
def _get_numpys(
    self: SharedVariable, borrow: bool = False, return_internal_type: bool = False
) -> Any:
    if return_internal_type:
        return _get_value(self, borrow, return_internal_type)
    value = _get_value(self, borrow=True, return_internal_type=True)
    if not is_foreign(value):
        return _get_value(self, borrow, return_internal_type)
    return np.asarray(value) if borrow else np.array(value)


SharedVariable.get_value = _get_numpys  # type: ignore[method-assign]
