"""Theano's names on PyTensor: ``import theano`` where Theano is not installed.

`modules` has the table of Theano's modules, and `synk.finders` makes ``theano.x`` and
`synk.theano.x` one module. The other files have what PyTensor lacks of Theano, by
subject.
"""

from . import changes, modules

__version__ = "1.0.5"
"""The version of Theano whose names these are."""

changes.register()
modules.make()
modules.fill(globals())
