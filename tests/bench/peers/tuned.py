"""synk's choice of an engine."""

import synk


def tuned(function, *args, **kwargs):
    """Have synk choose an engine for a function now; return its name, if it may."""
    found = synk.tune(function, *args, **kwargs)
    return next((engine.name for engine in found if engine.is_best), None)
