"""What users see of frames: their own lines, in tracebacks, warnings and messages."""

from __future__ import annotations

import os
import re
import traceback
import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from processes import ROWS, TOTAL, acting, run_script, running, summing
from reference import PY

import synk
from synk.user_frames import FULL, entry, is_users, made_in, shorten

HERE = os.path.basename(__file__)


def lines_of(error: BaseException) -> list[tuple[str, str]]:
    """Return file and function of each frame in a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return [(os.path.basename(frame.filename), frame.name) for frame in frames]


def without_marks(lines: list[str]) -> list[str]:
    """Leave out the lines that underline a place in the line above."""
    return [line for line in lines if line.strip(" ^~")]


# -- interrupts, at a real terminal

UNCAUGHT = """
synk.fork(2)
call = acting(1, processes.arrive_and_stay)
processes.print_on_arrival()
call(ROWS)
"""


def interrupted(path, **environment: str) -> list[str]:
    """Return what the terminal shows of a script that Ctrl-C ends in a call."""
    with running(UNCAUGHT, path, terminal=True, **environment) as script:
        script.expect("arrived")
        os.write(script.terminal, b"\x03")
        shown = without_marks(script.rest())
        assert script.wait() != 0
    return shown


def test_ctrl_c_shows_the_users_line_and_nothing_of_ours(tmp_path):
    first, place, line, last = interrupted(tmp_path)
    assert first == "Traceback (most recent call last):"
    assert re.fullmatch(rf'  File "{tmp_path}/script.py", line \d+, in <module>', place)
    assert (line, last) == ("    call(ROWS)", "KeyboardInterrupt")


def test_on_request_an_interrupt_shows_all_frames(tmp_path):
    shown = interrupted(tmp_path, **{FULL: "1"})
    assert sum("/synk/" in line for line in shown) > 5, shown
    assert shown[-1] == "KeyboardInterrupt"


MANY = """
import traceback
from synk.call import make
from synk.comm.shm import SharedMemoryComm
from synk.programs.programs import Programs

def tried(count, line):
    processes.reset()
    processes.print_on_arrival(count)
    try:
        line()
    except KeyboardInterrupt:
        traceback.print_exc()
    print("end", flush=True)

synk.fork(2)
x = pt.vector("x")
w = pytensor.shared(np.ones(3))
call, other = acting(None, processes.arrive_and_stay), summing()
tried(2, lambda: call(ROWS))
tried(2, lambda: call.run([slice(i, i + 4) for i in range(8)] * 1000, ROWS))

cut, make_spec = Programs.cut, make.make_spec
Programs.cut = lambda *_: processes.arrive_and_stay()
tried(1, lambda: other(ROWS))  # which it compiles
Programs.cut = cut
make.make_spec = lambda *_, **__: processes.arrive_and_stay()
tried(1, lambda: synk.function([x], x.sum()))
make.make_spec = make_spec
assert other(ROWS) == TOTAL

synk.close()
SharedMemoryComm.next_meeting = lambda self: processes.arrive_and_stay()
synk.fork(2)
tried(2, lambda: synk.all_reduce(w))
"""


def test_ctrl_c_shows_no_frame_of_ours_wherever_it_comes(tmp_path):
    with running(MANY, tmp_path, terminal=True) as script:
        for _ in range(MANY.count("\ntried(")):
            script.expect("arrived")
            before = len(script.seen)
            os.write(script.terminal, b"\x03")
            script.expect("end")
            shown = script.seen[before:-1]
            assert shown[0] == "Traceback (most recent call last):"
            assert shown[-1] == "KeyboardInterrupt"
            paths = [line.split('"')[1] for line in shown if line.startswith("  File")]
            names = [os.path.basename(path) for path in paths]
            assert names[:2] == ["script.py"] * 2, shown
            assert set(names) <= {"script.py", "processes.py"}, shown
        assert script.rest() == []
        assert script.wait() == 0


def interrupt() -> None:
    raise KeyboardInterrupt


def batches():
    yield slice(0, 4)
    raise KeyboardInterrupt


def test_an_interrupt_keeps_the_users_own_frames(two_ranks):
    f = acting(0, interrupt)
    with pytest.raises(KeyboardInterrupt) as caught:
        f(ROWS)
    names = [name for _, name in lines_of(caught.value)]
    assert names[0] == "test_an_interrupt_keeps_the_users_own_frames"
    assert names[-1] == "interrupt"
    assert of_ours(caught.value) == 0
    g = summing()
    with pytest.raises(KeyboardInterrupt) as caught:
        g.run(batches(), ROWS)
    assert [name for _, name in lines_of(caught.value)][1:] == ["batches"]
    assert g(ROWS) == TOTAL


def test_an_interrupt_of_a_rank_has_no_causes_to_show(two_ranks):
    with pytest.raises(KeyboardInterrupt) as caught:
        acting(1, interrupt)(ROWS)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    shown = "".join(traceback.format_exception(caught.value))
    assert "RemoteTraceback" not in shown
    assert summing()(ROWS) == TOTAL


# -- errors


def fail() -> None:
    raise ArithmeticError("of the user")


def of_ours(error: BaseException) -> int:
    """Return how many frames of a traceback are synk's."""
    here = os.path.dirname(synk.__file__)
    found = traceback.extract_tb(error.__traceback__)
    return sum(frame.filename.startswith(here) for frame in found)


def test_an_error_shows_one_frame_of_ours_at_the_most(two_ranks):
    x = pt.vector("x")
    w = pytensor.shared(np.ones(3), name="w")
    f = synk.function([x], (x.sum(), "sum"), mode=PY)
    calls = {
        "call": lambda: f(None),
        "names": lambda: f(z=1),
        "run": lambda: f.run([slice(2)], "ab"),
        "fork": lambda: synk.fork(2),
        "function": lambda: synk.function([x], 3),
        "set": lambda: synk.set_value(9, w, 1),
        "broadcast": lambda: synk.broadcast(w, np.ones((2, 2))),
        "data": lambda: synk.data(None),
        "index": lambda: synk.data(np.ones(3)).__setitem__(0, "a"),
        "load": lambda: synk.load("no such file.npz", [w]),
    }
    for name, call in calls.items():
        with pytest.raises(Exception) as caught:
            call()
        assert of_ours(caught.value) <= 1, (name, lines_of(caught.value))


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_of_an_op_keeps_the_users_frames_the_note_and_the_cause(rank):
    with synk.session(2), pytest.raises(ArithmeticError) as caught:
        acting(rank, fail)(ROWS)
    error = caught.value
    assert of_ours(error) == 1
    assert any(f"on rank {rank} of 2" in note for note in error.__notes__)
    where = (
        str(error.__cause__)
        if rank
        else "".join(traceback.format_tb(error.__traceback__))
    )
    assert 'raise ArithmeticError("of the user")' in where
    assert where.count(os.path.join("synk", "")) <= where.count("/tests/") + 1
    assert "worker_call" not in where


def test_on_request_errors_keep_all_frames(monkeypatch):
    with synk.session(1):
        for value, expected in (("1", True), ("0", False), ("", False)):
            monkeypatch.setenv(FULL, value)
            with pytest.raises(ArithmeticError) as caught:
                acting(0, fail)(ROWS)
            assert (of_ours(caught.value) > 3) == expected


def test_an_entry_is_the_function_that_it_was():
    def f(a, *, b: int = 2) -> int:
        """Say something."""
        return a + b

    made = entry(f)
    assert made(1, b=3) == 4
    assert (made.__name__, made.__doc__) == ("f", "Say something.")
    assert made.__globals__ is f.__globals__  # or its doctests would not be found
    assert made.__wrapped__ is f


def test_an_error_without_a_traceback_stays_as_it_is():
    error = ValueError("never raised")
    shorten(error)
    assert error.__traceback__ is None


# -- whose files


def test_whose_a_file_is():
    assert is_users(__file__)
    assert is_users("/home/user/fit.py")
    assert is_users("<stdin>")
    for path in (synk.__file__, pytensor.__file__, np.__file__, traceback.__file__):
        assert not is_users(path)
    assert not is_users("<frozen runpy>")
    assert not is_users("scipy/linalg/_cythonized_array_utils.pyx")


# -- the lines that made a graph


def line_after(marker: str) -> int:
    """Return the number of this file's line that comes after a comment."""
    with open(__file__) as source:
        lines = [line.strip() for line in source]
    return lines.index(f"# {marker}") + 2


def penalised():
    """Return an input, and a loss that no op combines."""
    x = pt.vector("x", dtype="float64")
    prior = pt.exp(-1.5 * x.mean())
    # the loss is made here
    loss = x.sum() - prior / 4
    return x, loss


def test_a_warning_names_the_line_that_made_the_output_and_that_of_the_reason():
    x, loss = penalised()
    place = rf"{HERE}:{line_after('the loss is made here')}"
    prior = rf"{HERE}:{line_after('the loss is made here') - 2}"
    match = (
        rf"^output 0 \(Sub\(.*\), made in {place}: `loss = x\.sum\(\) - prior / 4`\) is"
        rf" combined by 'avg', .*Exp\(.*\({prior}: `prior = pt\.exp\(.*`\)\. If that"
    )
    with pytest.warns(synk.SplitWarning, match=match):
        synk.function([x], loss, local=True)
    with pytest.raises(synk.SplitError, match=match):
        synk.function([x], loss, strict=True, local=True)
    other = pt.vector("other", dtype="float64")  # a copy of the graph is the user's too
    with pytest.raises(synk.SplitError, match=match):
        synk.function([other], loss, givens={x: other}, strict=True, local=True)


def test_a_refusal_names_the_line_that_made_the_output_and_that_of_the_reason(
    two_ranks,
):
    x = pt.vector("x", dtype="float64")
    scores = pytensor.shared(np.arange(4.0), "scores")
    options = {"sliceable_shareds": [scores], "mode": PY}
    # rows on the ranks are sorted here
    ranking = pt.sort(scores)
    # and here that is used
    best = x.mean() + ranking[-1]
    sorted_at = line_after("rows on the ranks are sorted here")
    ranked = rf"{HERE}:{sorted_at}: `ranking = pt\."
    place = rf"{HERE}:{line_after('and here that is used')}: `best = x\.mean\(\)"
    match = rf"^output 0 \(.*, made in {place}.*on more than one rank: .*\({ranked}"
    f = synk.function([x], best, **options)
    with pytest.raises(synk.SplitError, match=match):
        f(np.arange(4.0))
    with pytest.raises(synk.SplitError, match=match):
        synk.function([x], best, strict=True, **options)


def test_a_line_is_named_once_where_it_made_both():
    x = pt.vector("x", dtype="float64")
    with pytest.warns(synk.SplitWarning) as caught:
        synk.function([x], pt.sqrt(x.mean()), local=True)
    assert str(caught[0].message).count(HERE) == 1


def test_warnings_of_gradients_and_drift_name_the_users_line():
    x, v = pt.vector("x", dtype="float64"), pytensor.shared(1.0, name="v")
    # the gradient is made here
    gradient = synk.grad((v * x).sum(), v)
    place = f"{HERE}:{line_after('the gradient is made here')}"
    match = rf"^the gradient of v \(made in {place}: `gradient = synk\.grad\(.*`\) is"
    with pytest.warns(synk.SplitWarning, match=match):
        synk.function([x], [], updates={v: v - gradient}, local=True)
    # the update is made here
    step = v - pt.grad((v * x).mean(), v)
    place = f"{HERE}:{line_after('the update is made here')}"
    match = rf"with v equal on all ranks, and that is .* \({place}: `step = v - .*`\)"
    f = synk.function([x], (v * x).mean(), updates={v: step}, mode=PY, local=True)
    with synk.session(2):
        f(np.arange(4.0))
        with pytest.warns(synk.SplitWarning, match=match):
            f(np.arange(4.0))


def test_explain_names_the_lines_of_what_has_no_name():
    x, loss = penalised()
    named = x.max()
    named.name = "top"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", synk.SplitWarning)
        outputs = [loss, named, (synk.ops.all_reduce(loss), None)]
        f = synk.function([x], outputs, mode=PY, local=True)
    place = f"{HERE}:{line_after('the loss is made here')}"
    told = f.explain()
    text = " ".join(str(told).split())
    assert f"({place}: `loss = x.sum() - prior / 4`): avg; not shown: " in text
    assert "output 1 top: max; a maximum over the rows" in text
    assert f"avg of Sub(Sum(...), True_div(...)) ({place})" in text
    content = told.to_dict()
    assert content["outputs"][0]["made"] == f"{place}: `loss = x.sum() - prior / 4`"
    assert content["stages"][0]["reduces"][0]["made"].startswith(HERE)


def test_other_messages_name_the_line_as_well(two_ranks):
    x, loss = penalised()
    place = f"{HERE}:{line_after('the loss is made here')}"
    f = synk.function([x], (loss, "sum"), mode=PY)
    with pytest.raises(
        synk.SerialMismatch, match=f"made in {place}.*combined by 'sum'"
    ):
        f(np.arange(4.0), check="serial")
    y = pt.vector("y", dtype="float64")
    g = synk.function([y], (2 * y, "sum"), mode=PY)
    with pytest.raises(
        synk.ShapeMismatch, match=rf"output 0 .*made in {HERE}:\d+.*'sum'"
    ):
        g(np.ones(3))


def test_a_variable_without_a_trace_is_named_as_it_was():
    with pytensor.config.change_flags(traceback__limit=0):
        x, loss = penalised()
    assert made_in(loss) is None
    with pytest.warns(synk.SplitWarning, match=r"^output 0 \(Sub\([^`]*$"):
        synk.function([x], loss, local=True)


def test_what_we_make_ourselves_is_not_the_users():
    x = pt.vector("x", dtype="float64")
    v = pytensor.shared(1.0, name="v")
    step = synk.grad(((x - v) ** 2).mean(), v)
    f = synk.function([x], x.mean(), updates={v: v - step}, mode=PY)
    (reduced,) = f._spec.outputs  # the mean, which is reduced with the gradient
    assert reduced.owner.op.op == "avg"
    assert made_in(reduced) is None
    assert made_in(reduced.owner.inputs[0]).startswith(HERE)


@pytest.mark.parametrize(
    ("path", "line", "expected"),
    [
        ("/home/user/fit.py", "loss = x", "fit.py:7: `loss = x`"),
        ("/home/user/fit.py", None, "fit.py:7"),
        ("/home/user/fit.py", "loss  =  x + \\", "fit.py:7: `loss = x +`"),
        ("<stdin>", None, None),
        ("<python-input-3>", "loss = x", "`loss = x`"),
        ("/tmp/ipykernel_12/345.py", "loss = x", "a cell:7: `loss = x`"),
        ("/home/user/fit.py", "f(" + "a, " * 40 + ")", "fit.py:7: `f(a, a, a, "),
    ],
)
def test_how_a_line_is_named(path, line, expected):
    x = pt.vector("x")
    inner = (pt.__file__, 1, "vector", "return x")
    x.tag.trace = [[(path, 7, "<module>", line), inner]]
    made = made_in(x)
    assert made == expected or (made or "").startswith(f"{expected}a, ")
    assert len(made or "") < 80


def test_a_librarys_line_is_better_than_none():
    x = pt.vector("x")
    library = ("/venv/lib/python3/site-packages/layers/dense.py", 3, "f", "y = x + b")
    script = ("/home/user/fit.py", 7, "<module>", "y = dense(x)")
    x.tag.trace = [[script, library]]
    assert made_in(x) == "fit.py:7: `y = dense(x)`"
    x.tag.trace = [[library]]
    assert made_in(x) == "dense.py:3: `y = x + b`"
    x.tag.trace = []
    assert made_in(x) is None


def test_a_script_that_is_run_sees_its_own_lines_in_warnings(tmp_path):
    result = run_script(
        """
        x = pt.vector("x", dtype="float64")
        y = pt.sqrt(x.mean())
        synk.function([x], y, local=True)
        """,
        tmp_path,
    )
    assert re.search(
        r"made in script.py:\d+: `y = pt.sqrt\(x.mean\(\)\)`", result.stderr
    )
    assert re.search(r"script.py:\d+: SplitWarning", result.stderr)
    assert result.returncode == 0
