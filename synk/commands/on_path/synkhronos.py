"""``import synkhronos`` in what a script has started: see ``theano.py`` beside this."""

import pathlib

exec(pathlib.Path(__file__).with_name("theano.py").read_text())
