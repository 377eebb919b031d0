"""``import synkhronos`` in programs that a script starts: see ``theano.py``."""

import pathlib

exec(pathlib.Path(__file__).with_name("theano.py").read_text())
