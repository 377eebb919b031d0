"""C modes: settings of PyTensor's while a graph is compiled, and none of them later."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor import config
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply
from pytensor.link.c.op import COp
from pytensor.link.vm import VMLinker

import synk
from synk.engines import c_blas, c_compiler, c_settings, described
from synk.engines.c_compiler import c_is_there, vector_flags
from synk.engines.c_settings import compile_in_c

NAMES = ("blas__ldflags", "gcc__cxxflags", "mode")
PARAMETERS = [vars(getattr(type(config), name)) for name in NAMES]
SOURCES = tuple(module.__file__ for module in (c_blas, c_compiler, c_settings))

needs_c = pytest.mark.skipif(not c_is_there(), reason="no C compiler")
needs_flags = pytest.mark.skipif(
    not (c_is_there() and vector_flags()), reason="needs gcc, and glibc on x86-64"
)


def state() -> list[dict]:
    """Return all that PyTensor holds of the settings, without looking for a BLAS."""
    return [held.copy() for held in PARAMETERS]


@pytest.fixture
def unread():
    """Have no BLAS looked for, nor flags set, as in a new process."""
    before = state()
    for held in PARAMETERS[:2]:
        held["is_default"] = True
    PARAMETERS[0].pop("val", None)
    config.gcc__cxxflags = ""
    yield
    for held, was in zip(PARAMETERS, before, strict=True):
        held.clear()
        held.update(was)


def seen_in(mode) -> dict[str, str]:
    """Return the settings of the compiler while something is compiled in a mode."""
    seen = {}

    def make():
        names = zip(NAMES[:2], PARAMETERS, strict=False)
        seen.update((name, held["val"]) for name, held in names if "val" in held)
        return pytensor.function([], pt.constant(0), mode=Mode("py", None))

    compile_in_c(mode, make)
    return seen


C_MODES = ["CVM", "C", Mode("c|py", "fast_run"), Mode("vm", "fast_run")]


@needs_c
def label(mode) -> str:
    """Return what a mode is called in a test's name, the same in all processes."""
    return mode if isinstance(mode, str) else type(mode.linker).__name__


@pytest.mark.parametrize("mode", C_MODES, ids=label)
def test_in_c_modes_settings_are_made_and_afterwards_they_are_as_before(mode, unread):
    before, wanted = state(), c_settings.settings()
    assert "val" not in before[0]
    assert seen_in(mode) == {"gcc__cxxflags": ""} | wanted
    assert state() == before


@pytest.mark.parametrize("mode", ["NUMBA", "FAST_COMPILE", Mode("py", None)], ids=label)
def test_in_other_modes_none_is(mode, unread):
    assert seen_in(mode) == {"gcc__cxxflags": ""}


@needs_c
def test_an_error_leaves_the_settings_as_before(unread):
    def fail():
        raise RuntimeError("of the compiler")

    before = state()
    with pytest.raises(RuntimeError, match="of the compiler"):
        compile_in_c("CVM", fail)
    assert state() == before


@needs_c
def test_an_interrupt_at_any_line_leaves_the_settings_as_before(unread):
    before, lines = state(), 0
    while interrupted_at(lines + 1):
        assert state() == before
        lines += 1
    assert lines > 20


def interrupted_at(k: int) -> bool:
    """Interrupt a compilation at the k-th line of these modules; tell if there is."""
    left = [k]

    def trace(frame, event, arg):
        if not frame.f_code.co_filename.startswith(SOURCES):
            return None
        if event == "line":
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt
        return trace

    inner = OpFromGraph([v := pt.dvector()], [v + 1])
    x = pt.dvector()
    sys.settrace(trace)
    try:
        compile_in_c(
            "CVM", pytensor.function, [x], inner(x), mode=Mode("py", "fast_run")
        )
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


# -- what the user has set


@needs_c
def test_what_the_user_has_assigned_stays(unread):
    config.blas__ldflags, config.gcc__cxxflags = "-lmine", "-g0"
    assert c_settings.settings() == {}
    assert seen_in("CVM") == {"blas__ldflags": "-lmine", "gcc__cxxflags": "-g0"}
    assert config.blas__ldflags == "-lmine"


@needs_c
def test_each_setting_by_itself(unread):
    both = c_settings.settings().keys()
    config.gcc__cxxflags = "-g0"
    assert c_settings.settings().keys() == both - {"gcc__cxxflags"}


@needs_c
def test_what_the_environment_sets_stays_even_if_that_is_empty():
    script = "from synk.engines.c_settings import settings; print(settings())"
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTENSOR_FLAGS": "gcc__cxxflags=,blas__ldflags="},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert run.stdout == b"{}\n"


@needs_c
def test_a_blas_that_pytensor_finds_gives_way_whether_it_has_been_looked_for_or_not(
    unread, monkeypatch
):
    wanted = c_settings.settings()
    monkeypatch.setattr(c_settings, "_default", lambda name: "-lfound")
    config.blas__ldflags = "-lfound"
    assert c_settings.settings() == wanted


# -- code and PyTensor's cache of it


class Compiled(COp):
    """Returns 1 if it was compiled with the flags, 0 if without, -1 in Python."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [pt.as_tensor(x)], [pt.dscalar()])

    def c_code_cache_version(self):
        return (1,)

    def c_code(self, node, name, inputs, outputs, sub):
        (out,) = outputs
        return f"""
        Py_XDECREF({out});
        {out} = (PyArrayObject *) PyArray_ZEROS(0, NULL, NPY_DOUBLE, 0);
        if (!{out}) {{ {sub["fail"]} }}
        #ifdef __FAST_MATH__
        *(double *) PyArray_DATA({out}) = 1;
        #endif
        """

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.asarray(-1.0)


def how(x):
    return Compiled()(x)


@needs_flags
def test_the_cache_tells_code_with_the_flags_from_code_without(unread):
    x = pt.dscalar("x")
    with_flags = synk.function([], how(x), bcast_inputs=[x], mode="CVM")
    # twice: from the compiler or from the cache, in any order
    for _ in range(2):
        assert with_flags.as_theano(0.0) == 1
        assert pytensor.function([x], how(x), mode="CVM")(0.0) == 0
        with_flags = synk.function([], how(x), bcast_inputs=[x], mode="CVM")


@needs_flags
@pytest.mark.filterwarnings("ignore:Scan return signature:DeprecationWarning")
def test_graphs_within_a_graph_are_compiled_to_c_with_the_flags(two_ranks):
    x = pt.dscalar("x")
    inner = OpFromGraph([x], [how(x)])
    nested = OpFromGraph([x], [inner(x) + 0 * x])
    steps, _ = pytensor.scan(lambda last: how(last), outputs_info=x, n_steps=2)
    outputs = [(made, "avg") for made in (inner(x), nested(x), steps[-1])]
    f = synk.function([], outputs, bcast_inputs=[x], mode="CVM")
    np.testing.assert_array_equal(f(0.0), 1)


@needs_c
def test_a_default_mode_for_c_is_that_of_inner_graphs_too():
    default = Mode("cvm", "fast_run").excluding("fusion")
    x = pt.dvector()
    inner = OpFromGraph([x], [pt.exp(x) + 1])
    with config.change_flags(mode=default):
        made = compile_in_c(None, pytensor.function, [x], inner(x))
        assert config.mode is default
    (node,) = made.maker.fgraph.toposort()
    assert len(node.op.fn.maker.fgraph.toposort()) == 2
    assert made.maker.mode is default


# -- no compiler


def test_without_a_compiler_it_is_said_and_the_graph_runs_in_python(unread):
    # PyTensor's CVM mode as it is where there was none at its import
    as_there = Mode(VMLinker(use_cloop=True, c_thunks=False), "fast_run")
    x = pt.dvector("x")
    with config.change_flags(cxx=""):
        assert not c_is_there()
        assert seen_in(as_there) == {"gcc__cxxflags": ""}
        said = "(in Python, as there is no C compiler)"
        assert described("CVM") == f"mode CVM {said}"
        assert described(as_there) == f"a mode of its own {said}"
        assert described("FAST_COMPILE") == "mode FAST_COMPILE"
        f = synk.function([x], (pt.exp(x).sum(), "sum"), mode=as_there)
        assert f.as_theano(np.zeros(3)) == 3


def test_a_compiler_that_is_gone_or_has_no_headers_is_none(monkeypatch, tmp_path):
    with config.change_flags(cxx=str(tmp_path / "g++")):
        assert not c_is_there()
    monkeypatch.setattr(c_compiler.sysconfig, "get_path", lambda name: str(tmp_path))
    assert not c_is_there()


@pytest.mark.parametrize(
    ("name", "answer", "version"),
    [
        ("g++", "echo 12", 12),
        ("x86_64-linux-gnu-g++-12", "echo 12.2.0", 12),
        ("g++", "echo 7", 7),
        ("g++", "echo nothing", 0),
        ("g++", "exit 1", 0),
        ("clang++", "echo 14.0.6", 0),
        ("g++", None, 0),
    ],
)
def test_gcc_is_known_by_its_name_and_asked_for_its_version(
    name, answer, version, tmp_path
):
    path = tmp_path / name
    if answer is not None:
        path.write_text(f"#!/bin/sh\n{answer}\n")
        path.chmod(0o755)
    assert c_compiler.gcc_version(str(path)) == version


@pytest.mark.parametrize(("version", "flags"), [(7, ""), (8, c_compiler.VECTOR_FLAGS)])
def test_flags_are_for_a_gcc_that_knows_them(version, flags, monkeypatch):
    monkeypatch.setattr(c_compiler, "gcc_version", lambda compiler: version)
    monkeypatch.setattr(c_compiler.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(c_compiler.platform, "libc_ver", lambda: ("glibc", "2.36"))
    assert vector_flags() == flags


@needs_c
def test_flags_are_for_glibc_on_x86(monkeypatch):
    monkeypatch.setattr(c_compiler.platform, "machine", lambda: "aarch64")
    assert vector_flags() == ""
    monkeypatch.setattr(c_compiler.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(c_compiler.platform, "libc_ver", lambda: ("", ""))
    assert vector_flags() == ""


@needs_flags
def test_the_compiler_takes_the_flags(tmp_path):
    (tmp_path / "empty.cpp").touch()
    command = [config.cxx, "-Werror", *vector_flags().split(), "-c", "empty.cpp"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert Path(tmp_path, "empty.o").exists()
