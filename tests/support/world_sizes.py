"""Sessions of few sizes, for claims that do not depend on how many ranks there are.

Each size is a session, with the functions of a test compiled on all of its ranks. One
rank has nothing to agree on; three have parts of unequal size, or none.
"""

from __future__ import annotations

import pytest

one_and_three_ranks = pytest.mark.parametrize(
    "ranks", [1, 3], ids="{}ranks".format, indirect=True
)

three_ranks = pytest.mark.parametrize("ranks", [3], ids="{}ranks".format, indirect=True)
"""On two cores three ranks take less than two: they do not watch for each other."""
