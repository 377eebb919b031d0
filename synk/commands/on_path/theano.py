"""``import theano`` or ``import synkhronos`` in what a script has started.

Found by programs and processes that a script under ``python -m synk`` starts. It
imports synk, and looks again: the package that an import leaves in `sys.modules` is
what the import returns. Its neighbour runs this text under the other name.
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
        if importlib.util.find_spec("synk") is None:  # it was run where it lies
            sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(here))))
        importlib.import_module("synk")  # which registers the finder of the two names
        importlib.import_module(name)
    finally:
        sys.path.append(here)


_look_again(__name__)
