"""Threads of BLAS and OpenMP libraries: capped before the fork, and lifted at the end.

A fork ends the threads of OpenBLAS, in the parent as in the child, and whoever sets
their number then starts them again, to watch for work for some 30 ms each before they
sleep. Every rank did that, for threads that it was not to use: on two cores it was half
the cost of a session, and it grows with ranks times cores. The number itself comes
through a fork, so it is set before, and afterwards only where it is another.
"""

from __future__ import annotations

from threadpoolctl import ThreadpoolController


class ThreadPools:
    """The thread pools of the libraries that are loaded: `cap`, then `restore`.

    Made by the master before it forks, and inherited by the ranks.
    """

    def __init__(self) -> None:
        self._libraries: ThreadpoolController | None = None
        self._before: dict[str, int] = {}

    def cap(self, threads: int) -> None:
        """Have every pool use so many threads."""
        if self._libraries is None:
            # Anew after a `restore`: libraries may have been loaded meanwhile.
            self._libraries = ThreadpoolController()
            self._before = self._numbers()
        self._set(dict.fromkeys(self._before, threads))

    def look_again(self) -> None:
        """Take libraries in that have been loaded since `cap`."""
        self._libraries = ThreadpoolController()
        self._before = self._numbers() | self._before

    def lift(self) -> None:
        """Give every pool its threads again, until it is next capped."""
        if self._libraries is not None:
            self._set(self._before)

    def restore(self) -> None:
        """Give every pool the threads that it had before it was capped."""
        if self._libraries is not None:
            self._set(self._before)
            self._libraries = None

    def _numbers(self) -> dict[str, int]:
        assert self._libraries is not None
        infos = self._libraries.info()
        return {info["filepath"]: info["num_threads"] for info in infos}

    def _set(self, wanted: dict[str, int]) -> None:
        assert self._libraries is not None
        for path, number in self._numbers().items():
            if number != wanted[path]:
                self._libraries.select(filepath=[path]).limit(limits=wanted[path])
