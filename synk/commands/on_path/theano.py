"""``import theano`` or ``import synkhronos`` in programs that a script starts.

Programs and processes that a script under ``python -m synk`` starts find this file. It
imports synk, and then the real package, which replaces this module in `sys.modules`, so
that the import returns it. ``synkhronos.py`` runs this code under the other name.
"""

import importlib
import importlib.util
import os
import sys


def _look_again(name):
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    del sys.modules[name]
    try:
        if importlib.util.find_spec("synk") is None:  # synk is not installed
            sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(here))))
        importlib.import_module("synk")  # registers the finder of the two names
        importlib.import_module(name)
    finally:
        sys.path.append(here)


_look_again(__name__)
