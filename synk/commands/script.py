"""``python -m synk script.py``: run a script that imports theano before synk.

The script runs as with ``python script.py``: with its own ``sys.argv``, ``sys.path[0]``
and ``__main__``, and its own exit status; tracebacks begin with the script's frame.
Python programs and processes of multiprocessing that it starts find ``theano`` and
``synkhronos`` in the folder ``on_path``, which is appended to ``PYTHONPATH``.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from ..cluster import launcher

ON_PATH = Path(__file__).parent / "on_path"


def main(
    argv: Sequence[str],
    within: Callable[[], AbstractContextManager] = nullcontext,
) -> int:
    """Run the script ``argv[0]``; return 0, or 2 if there is no such script.

    The script runs within the context manager that `within` returns. Its exceptions,
    `SystemExit` among them, are raised.
    """
    path = os.path.abspath(argv[0])
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        reason = f"[Errno {error.errno}] {error.strerror}"
        print(f"python -m synk: can't open file {path!r}: {reason}", file=sys.stderr)
        return 2
    sys.argv = list(argv)
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    _offer_names()
    launched = launcher.launched()
    if launched is None:
        with within():
            run(source, path)
        return 0
    return _run_on_nodes(launched, source, path, within)


def _run_on_nodes(
    launched: launcher.Launched,
    source: bytes,
    path: str,
    within: Callable[[], AbstractContextManager],
) -> int:
    """Run a script on node 0; on other nodes, serve node 0's commands."""
    from ..cluster.nodes import Cluster
    from ..ranks.serving import serve
    from ..ranks.session import SESSION

    launcher.take_cores(launched)
    cluster = Cluster(launched)
    if cluster.node:
        return serve(cluster)
    SESSION.cluster = cluster
    try:
        with within():
            run(source, path)
    finally:
        SESSION.close()
        cluster.end()
    return 0


def run(source: bytes, path: str) -> None:
    """Run source code as the main module; its exceptions are raised.

    ``sys.excepthook`` prints their tracebacks from the script's frame on.
    """
    code = None
    try:
        code = compile(source, path, "exec", dont_inherit=True)
        exec(code, _main_module(path).__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        hook, shown = sys.excepthook, _from_script(error.__traceback__, code)

        def print_it(kind: Any, value: BaseException, _: object) -> None:
            sys.last_traceback = shown  # for pdb.pm()
            hook(kind, value.with_traceback(shown), shown)

        # Raised, as the interpreter makes the exit status from it: after Ctrl-C, the
        # process ends by its signal.
        sys.excepthook = print_it
        raise


def _main_module(path: str) -> ModuleType:
    """Replace ``__main__`` by an empty module for the script at `path`; return it."""
    module = ModuleType("__main__")
    module.__file__ = path
    module.__loader__ = SourceFileLoader("__main__", path)
    module.__dict__["__builtins__"] = builtins
    for name, empty in ("__annotations__", {}), ("__cached__", None):
        if hasattr(sys.modules["__main__"], name):  # in some versions of Python
            module.__dict__[name] = empty
    sys.modules["__main__"] = module
    return module


def _from_script(
    traceback: TracebackType | None, code: CodeType | None
) -> TracebackType | None:
    """Return a traceback from the script's frame on; None if it has no such frame."""
    while traceback is not None and traceback.tb_frame.f_code is not code:
        traceback = traceback.tb_next
    return traceback


def _offer_names() -> None:
    """Let programs that the script starts find ``theano`` and ``synkhronos``.

    The folder comes last, so that an installed package is found first.
    """
    sys.path.append(str(ON_PATH))  # processes of multiprocessing inherit this
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(ON_PATH) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, paths), str(ON_PATH)])
