"""What runs on GPUs only: ``python -m pytest -m gpu``."""

import pytest

from synk.workers import devices


def pytest_collection_modifyitems(items):
    """Mark what is here, and skip it where there is no GPU."""
    why_not = devices.why_not_jax()
    if why_not is None and not devices.find_gpus():
        why_not = "no NVIDIA GPU was found"
    for item in items:
        if "gpu" in item.path.parts[-2]:
            item.add_marker(pytest.mark.gpu)
            if why_not is not None:
                item.add_marker(pytest.mark.skip(reason=why_not))
