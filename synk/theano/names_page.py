"""``docs/theano.rst`` from the table in `names`.

``python -m synk.theano.names_page docs/theano.rst`` writes it.
"""

from __future__ import annotations

from .names import sections
from .names_section import STATES, Section


def page() -> str:
    """Return ``docs/theano.rst``."""
    counts = dict.fromkeys(STATES, 0)
    tables = []
    for section in sections():
        rows = section.rows()
        for _, state, _ in rows:
            counts[state] += 1
        tables.append(_table(section, rows))
    total = sum(counts.values())
    summary = ", ".join(f"{count} {state}" for state, count in counts.items())
    return _INTRODUCTION.format(total=total, summary=summary) + "\n".join(tables)


def _table(section: Section, rows: list[tuple[str, str, str]]) -> str:
    lines = [section.title, "-" * len(section.title), ""]
    lines += [f"Names of ``{section.module}``.", ""]
    lines += [".. list-table::", "   :widths: 30 12 58", ""]
    for name, state, remark in rows:
        lines += [f"   * - ``{name}``", f"     - {state}", f"     - {remark}".rstrip()]
    return "\n".join([*lines, ""])


_INTRODUCTION = """\
.. Made by ``python -m synk.theano.names_page docs/theano.rst``: edit names*.py there.

Theano's names
==============

After ``import synk``, ``import theano`` works where Theano is not installed, and gives
Theano's names on PyTensor:

>>> import synk
>>> import numpy as np
>>> import theano
>>> import theano.tensor as T
>>> x, y = T.matrix("x"), T.ivector("y")
>>> w = theano.shared(np.zeros((4, 3)), name="w")
>>> p = T.nnet.softmax(T.dot(x, w))
>>> loss = T.nnet.categorical_crossentropy(p, y).mean()
>>> updates = [(w, w - 0.1 * T.grad(loss, w))]
>>> train = theano.function([x, y], loss, updates=updates)
>>> print(f"{{train(np.ones((2, 4)), np.array([0, 1], 'int32')):.6f}}")
1.098612

To train on every core, the last function is made by :func:`synk.function`; nothing else
changes.

A Theano that is installed comes first. ``SYNK_THEANO=0`` in the environment leaves
``import theano`` alone.

Options are read from ``~/.theanorc``, or the files that ``THEANORC`` lists, and from
``THEANO_FLAGS``, which come before. Those that PyTensor has are set there:
``floatX = float32`` in such a file holds for ``pytensor.config.floatX`` as well, from
``import theano`` on. ``PYTENSOR_FLAGS`` come before all. What has no effect any more is
named in one warning for each file; ``device`` stays ``cpu``, and :func:`synk.fork` says
which devices are used.

``theano.tensor`` and ``synk.theano.tensor`` are one module, and so on for all others.
What PyTensor has and Theano never had can be used through ``theano.tensor`` as well.

Lasagne 0.1 (``pip install Lasagne``) runs on it unmodified, and so does 0.2.dev1, which
its users installed from its repository until 2019. ``import synk`` comes before
``import lasagne``. Its update rules, ``lasagne.updates.adam(loss, params)``, and its
batch normalisation have the numbers of the serial run on ranks. Version 0.1 asks
``pkg_resources`` for its own version, which current versions of setuptools do not have:
synk answers then, to Lasagne alone.

Keras 2.3.1 and 2.2.5 train and predict on it: :doc:`keras`.

What is different from Theano 1.0:

* Variables are PyTensor's: their methods and operators are as PyTensor has them. But
  ``bool(variable)`` is True, for ``if not input:``, and an error for comparisons, as in
  Theano, in modules that have names of Theano's and in what they call. All other code
  gets PyTensor's error.
* Calls may give a shared variable's values by ``f[w] = value``; those of inputs with a
  value of their own, ``theano.In(s, value=10., update=s + i)``, stay from call to call.
  :func:`synk.function` takes shared variables and ``updates`` for the same.
* Random streams give NumPy's numbers, not those of Theano for the same seed.
* ``import theano`` adds the rewrites to the mode FAST_COMPILE that keep logarithms
  finite, as of a softmax at logits of 1000, since Theano's had them. That holds for
  PyTensor's functions of the same process, too.
* ``T.set_subtensor(x[i], y)`` and ``inc_subtensor``, by a vector ``i``, take a ``y`` of
  one row at run time for all of these rows in numba, as Theano did; C and JAX refuse
  it. With ``T.addbroadcast(y, 0)`` all have Theano's numbers, and the right gradient.
* ``T.cast(x, "uint8")`` of floats beyond the range wraps around with all engines.
* ``theano.gpuarray`` and ``theano.sandbox.cuda`` say that they are not activated, as in
  a Theano without a GPU: ``pygpu_activated`` and ``cuda_enabled`` are False. ``use``
  warns, and the script goes on. ``dnn.dnn_available()`` is False, and what else their
  modules have (``dnn_conv``, ``gpu_contiguous``, ``GpuArrayType``) raises when it is
  used. So Lasagne's ``layers.dnn``, ``layers.corrmm`` and ``layers.cuda_convnet`` are
  ImportErrors, as they were. Graphs run on GPUs in JAX mode: :doc:`gpu`.

The tables have {total} public names of Theano 1.0 in these modules: {summary}.
*Same* is the very object of PyTensor, *mapped* is PyTensor's under another
name or with Theano's arguments, *written* is synk's own, *absent* is an error that says
what to use.

"""


if __name__ == "__main__":
    import sys
    from pathlib import Path

    Path(sys.argv[1]).write_text(page())
