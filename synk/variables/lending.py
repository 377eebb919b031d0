"""Who may yet write to an array, and whether anybody has, without a look at its values.

A script writes to the memory of a `Data` through arrays only that the `Data` gave it.
Each of them is made for that occasion, right on the memory: whatever numpy derives from
it, as views, has it for its base and keeps it alive. So while one of them lives there
may be a change at any time, and once it is gone there can be none any more.
"""

from __future__ import annotations

import itertools
import weakref

import numpy as np

from ..memory.segment import Window
from ..workers.forks import by_the_script

_states = itertools.count()


class Lending:
    """The arrays that a script was given of one piece of memory.

    Attributes
    ----------
    window : Window or None
        What that is told to other processes by; see `memory.unchanged`.
    is_partial : bool
        Whether it has the rows of this machine's ranks only: see `files.on_nodes`.
    """

    def __init__(self) -> None:
        self.window: Window | None = None
        self.is_partial = False
        self._forks = by_the_script()
        self._state = next(_states)
        self._alive: weakref.WeakValueDictionary[int, np.ndarray]
        self._alive = weakref.WeakValueDictionary()

    def lend(self, array: np.ndarray) -> np.ndarray:
        """Take note that the script is given an array, and return it.

        Parameters
        ----------
        array : numpy.ndarray
            No view of another array: views would have that one for their base.
        """
        state = next(_states)
        # In this order: see `state`.
        self._alive[state] = array
        self._state = state
        return array

    @property
    def state(self) -> int | None:
        """A number that no other values have, here or in other memory.

        None where they may be written to at any time: by who has one of the arrays, or
        by a child of the script, whose writing would not be seen here.
        """
        # Another thread may be given an array between any two lines. This number is
        # that of the array or an older one: an array of this number is in the
        # dictionary if it lives, and of an older number nobody asks any more.
        state = self._state
        if self._alive or by_the_script() != self._forks:
            return None
        return state
