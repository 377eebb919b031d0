"""Errors on ranks: what the master raises, which lines are shown, and what goes on."""

import os
import re
import traceback

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from on_ranks import three_ranks
from processes import (
    ROWS,
    TOTAL,
    Act,
    Do,
    acting,
    arrive,
    assert_works,
    await_arrivals,
    reset,
    running,
    summing,
)
from reference import PY

import synk
from synk.errors import RemoteTraceback

HERE = os.path.basename(__file__)


class OfThisModule(Exception):
    """An exception with more to it than a message."""

    def __init__(self, code, reason):
        super().__init__(code, reason)
        self.code = code


class NotPicklable(Exception):
    """An exception whose arguments are not those of its constructor."""

    def __init__(self, code, reason):
        super().__init__(f"{reason} ({code})")
        self.hook = lambda: code


class NotRestored(Exception):
    """An exception that does not come out of its pickle."""

    def __reduce__(self):
        return type(self), ("again",), {"x": 1}

    def __setstate__(self, state):
        raise SystemExit(4)


ERRORS = {
    "ValueError": lambda: ValueError("bad value", 7),
    "OSError": lambda: FileNotFoundError(2, "no such thing", "there"),
    "own": lambda: OfThisModule(4, "because"),
    "system exit": lambda: SystemExit(5),
    "long": lambda: RuntimeError("x" * 100_000),
}


def fail(name: str) -> None:
    raise ERRORS[name]()


def fail_in_an_unpicklable_way(kind: type, *args) -> None:
    raise kind(*args)


@three_ranks
def test_an_error_on_a_rank_keeps_its_type_and_says_where(ranks):
    for name, make in ERRORS.items():
        expected = make()
        with pytest.raises(type(expected)) as caught:
            acting(1, fail, name)(ROWS)
        error = caught.value
        assert error.args == expected.args
        assert vars(error).items() >= vars(expected).items()
        assert isinstance(error.__cause__, RemoteTraceback)
        assert "raise ERRORS[name]()" in str(error.__cause__)
        assert "in perform" in str(error.__cause__)
        notes = [note for note in error.__notes__ if "rank 1 of 3" in note]
        assert len(notes) == 1
        assert "'acting'" in notes[0]
    for kind, *args in ((NotPicklable, 6, "nothing"), (NotRestored, "nothing")):
        with pytest.raises(synk.RemoteError, match="nothing") as caught:
            acting(1, fail_in_an_unpicklable_way, kind, *args)(ROWS)
        assert kind.__name__ in str(caught.value)
        assert "in fail_in_an_unpicklable_way" in str(caught.value.__cause__)
        assert any("rank 1 of 3" in note for note in caught.value.__notes__)
    with pytest.raises(OfThisModule) as caught:
        acting(0, fail, "own")(ROWS)
    assert any("rank 0 of 3" in note for note in caught.value.__notes__)
    call = acting(1, fail, "ValueError")
    for _ in range(20):
        with pytest.raises(ValueError, match="bad value"):
            call(ROWS)
    assert_works(3)


@three_ranks
def test_an_error_leaves_its_class_as_the_script_has_it(ranks):
    class Local(ValueError):
        advice = "none"

        def text(self):
            return f"{self} {self.advice}"

    call, before = acting(1, fail_in_an_unpicklable_way, Local, "of here"), Local.text
    for advice in ("none", "some"):
        Local.advice = advice
        with pytest.raises(Local) as caught:
            call(ROWS)
        assert caught.value.text() == f"of here {advice}"
        assert Local.text is before


# -- errors of several ranks -----------------------------------------------------------


def fail_together(*errors: tuple) -> None:
    """Raise on each rank that has an error, when all of these have come."""
    ranks = [rank for rank, _ in errors]
    if synk.rank() in ranks:
        await_arrivals(ranks.index(synk.rank()))
        arrive()
        await_arrivals(len(ranks))
        raise dict(errors)[synk.rank()]


def raised_together(kind: type, *errors: tuple) -> BaseException:
    """Return what a call raises on whose ranks errors are raised at one time."""
    reset()
    with pytest.raises(kind) as caught:
        acting(None, fail_together, *errors)(ROWS)
    return caught.value


@three_ranks
def test_errors_of_one_class_are_one_error_that_names_the_ranks(ranks):
    error = raised_together(KeyError, (1, KeyError("a")), (2, KeyError("a")))
    notes = error.__notes__
    assert sum("[synk]" in note for note in notes) == 2
    assert notes[-1] in [f"[synk] likewise on rank {rank} of 3" for rank in (1, 2)]
    assert isinstance(error.__cause__, RemoteTraceback)
    error = raised_together(KeyError, (0, KeyError("of 0")), (2, KeyError("x" * 1000)))
    assert error.args == ("of 0",)  # the master's own
    note = error.__notes__[-1]
    assert note.startswith("[synk] on rank 2 of 3 as well: KeyError: 'xxx")
    assert len(note) < 400
    assert error.__cause__ is None
    assert_works(3)


@three_ranks
def test_errors_of_several_classes_are_a_group(ranks):
    errors = (0, ValueError(0)), (1, IndexError(1)), (2, KeyError(2))
    group = raised_together(ExceptionGroup, *errors)
    assert "ranks 0, 1, 2 of 3 failed" in str(group)
    for rank, error in errors:
        (found,) = [e for e in group.exceptions if type(e) is type(error)]
        assert any(f"on rank {rank} of 3" in note for note in found.__notes__)
    errors = (1, SystemExit(3)), (2, ValueError("v"))
    assert not isinstance(raised_together(BaseExceptionGroup, *errors), Exception)
    assert_works(3)


@three_ranks
def test_an_error_frees_ranks_that_wait_for_that_one_and_they_do_not_count(ranks):
    x = pt.dmatrix("x")
    total = synk.ops.all_reduce(Act(1, Do(fail, "own"))(x).sum(), "sum")
    f = synk.function([x], (total, None), mode=PY, name="meeting")
    with pytest.raises(OfThisModule) as caught:
        f(ROWS, timeout=30)  # and not forever
    (note,) = (note for note in caught.value.__notes__ if "[synk]" in note)
    assert "rank 1 of 3" in note
    assert "'meeting'" in note
    assert_works(3)


# -- whose lines are shown -------------------------------------------------------------


def names_of(error: BaseException) -> list[str]:
    """Return the function of each frame in a traceback."""
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


MANY = """
import traceback

def tried(count, line):
    processes.reset()
    processes.print_on_arrival(count)
    try:
        line()
    except KeyboardInterrupt:
        traceback.print_exc()
    print("end", flush=True)

class Compiled(Act):
    def prepare_node(self, *args, **kwargs):
        self.action()

synk.fork(2)
x = pt.matrix("x", dtype="float64")
call, other = acting(None, processes.arrive_and_stay), summing()
tried(2, lambda: call(ROWS))
tried(2, lambda: call.run([slice(i, i + 4) for i in range(8)] * 1000, ROWS))
late = Compiled(0, processes.arrive_and_stay)
tried(1, lambda: synk.function([x], late(x).sum(), mode=PY, name="late")(ROWS))
assert other(ROWS) == TOTAL
os.environ["SYNK_FULL_TRACEBACK"] = "1"
tried(2, lambda: call(ROWS))
del os.environ["SYNK_FULL_TRACEBACK"]
call = acting(1, processes.arrive_and_stay)
processes.reset()
processes.print_on_arrival(1)
call(ROWS)
"""


def test_ctrl_c_shows_the_users_lines_alone_wherever_it_comes(tmp_path):
    with running(MANY, tmp_path, terminal=True) as script:
        for full in (False, False, False, True):
            script.expect("arrived")
            before = len(script.seen)
            os.write(script.terminal, b"\x03")
            script.expect("end")
            shown = script.seen[before:-1]
            ends = shown[0], shown[-1]
            assert ends == ("Traceback (most recent call last):", "KeyboardInterrupt")
            paths = [line.split('"')[1] for line in shown if line.startswith("  File")]
            names = [os.path.basename(path) for path in paths]
            assert names[:2] == ["script.py"] * 2, shown
            if full:
                assert sum("/synk/" in path for path in paths) > 5, shown
            else:
                assert set(names) <= {"script.py", "processes.py", "own_ops.py"}, shown
        script.expect("arrived")
        os.write(script.terminal, b"\x03")
        # Without marks, that underline a place in the line above
        first, place, *rest = (said for said in script.rest() if said.strip(" ^~"))
        assert script.wait() != 0
    assert (first, *rest) == (ends[0], "    call(ROWS)", ends[1])
    assert re.fullmatch(rf'  File "{tmp_path}/script.py", line \d+, in <module>', place)


def interrupt() -> None:
    raise KeyboardInterrupt


def batches():
    yield slice(0, 4)
    raise KeyboardInterrupt


def test_an_interrupt_keeps_the_users_own_frames_and_has_no_causes(two_ranks):
    with pytest.raises(KeyboardInterrupt) as caught:
        acting(0, interrupt)(ROWS)
    names = names_of(caught.value)
    assert names[0] == "test_an_interrupt_keeps_the_users_own_frames_and_has_no_causes"
    assert names[-1] == "interrupt"
    assert of_ours(caught.value) == 0
    g = summing()
    with pytest.raises(KeyboardInterrupt) as caught:
        g.run(batches(), ROWS)
    assert names_of(caught.value)[1:] == ["batches"]
    with pytest.raises(KeyboardInterrupt) as caught:
        acting(1, interrupt)(ROWS)
    shown = "".join(traceback.format_exception(caught.value))
    assert "RemoteTraceback" not in shown
    assert "During handling" not in shown
    assert g(ROWS) == TOTAL


def fail_of_the_user() -> None:
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
        assert of_ours(caught.value) <= 1, (name, names_of(caught.value))


def test_an_error_of_an_op_keeps_the_users_frames_the_note_and_the_cause(
    two_ranks, monkeypatch
):
    for rank in (0, 1):
        with pytest.raises(ArithmeticError) as caught:
            acting(rank, fail_of_the_user)(ROWS)
        error = caught.value
        assert of_ours(error) == 1
        assert any(f"on rank {rank} of 2" in note for note in error.__notes__)
        frames = traceback.format_tb(error.__traceback__)
        where = str(error.__cause__) if rank else "".join(frames)
        assert 'raise ArithmeticError("of the user")' in where
        assert where.count(os.path.dirname(synk.__file__)) <= 1
        assert "worker_call" not in where
    for value, is_full in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv("SYNK_FULL_TRACEBACK", value)
        with pytest.raises(ArithmeticError) as caught:
            acting(0, fail_of_the_user)(ROWS)
        assert (of_ours(caught.value) > 3) == is_full


def test_an_error_has_nothing_of_what_was_handled_at_the_fork():
    try:
        raise ValueError("long ago")
    except ValueError:
        synk.fork(2)
    try:
        with pytest.raises(ArithmeticError) as caught:
            acting(1, fail_of_the_user)(ROWS)
    finally:
        synk.close()
    assert "of the user" in str(caught.value.__cause__)
    assert "long ago" not in str(caught.value.__cause__)


# -- the lines that made a graph -------------------------------------------------------


def line_after(marker: str) -> int:
    """Return the number of this file's line that comes after a comment."""
    with open(__file__) as source:
        lines = [line.strip() for line in source]
    return lines.index(f"# {marker}") + 2


def penalised():
    """Return an input, and a loss that no op combines."""
    x = pt.dvector("x")
    prior = pt.exp(-1.5 * x.mean())
    # the loss is made here
    loss = x.sum() - prior / 4
    return x, loss


def test_a_warning_names_the_line_that_made_the_output_and_that_of_the_reason():
    x, loss = penalised()
    line = line_after("the loss is made here")
    match = (
        rf"^output 0 \(Sub\(.*\), made in {HERE}:{line}: `loss = x\.sum\(\) - prior"
        rf" / 4`\) is combined by 'avg', .*Exp\(.*\({HERE}:{line - 2}: `prior ="
        r" pt\.exp\(.*`\)\. If that"
    )
    with pytest.warns(synk.SplitWarning, match=match):
        f = synk.function([x], [loss, (synk.ops.all_reduce(loss), None)], local=True)
    told, made = f.explain(), f"{HERE}:{line}: `loss = x.sum() - prior / 4`"
    assert f"({made}): avg; not shown: " in " ".join(str(told).split())
    content = told.to_dict()
    assert content["outputs"][0]["made"] == made
    assert content["stages"][0]["reduces"][0]["made"].startswith(HERE)
    other = pt.dvector("other")  # a copy of the graph is the user's too
    for inputs, givens in (([x], None), ([other], {x: other})):
        with pytest.raises(synk.SplitError, match=match):
            synk.function(inputs, loss, givens=givens, strict=True, local=True)


def test_a_refusal_names_the_line_that_made_the_output_and_that_of_the_reason(
    two_ranks,
):
    x = pt.dvector("x")
    scores = pytensor.shared(np.arange(4.0), "scores")
    options = {"sliceable_shareds": [scores], "mode": PY}
    # rows on the ranks are sorted here
    ranking = pt.sort(scores)
    best = x.mean() + ranking[-1]
    line = line_after("rows on the ranks are sorted here")
    match = (
        rf"^output 0 \(.*, made in {HERE}:{line + 1}: `best = x\.mean\(\).*on more than"
        rf" one rank: .*\({HERE}:{line}: `ranking = pt\."
    )
    f = synk.function([x], best, **options)
    with pytest.raises(synk.SplitError, match=match):
        f(np.arange(4.0))
    with pytest.raises(synk.SplitError, match=match):
        synk.function([x], best, strict=True, **options)


def test_warnings_of_gradients_and_drift_name_the_users_line():
    x, v = pt.dvector("x"), pytensor.shared(1.0, name="v")
    # the gradient is made here
    gradient = synk.grad((v * x).sum(), v)
    step = v - pt.grad((v * x).mean(), v)
    line = line_after("the gradient is made here")
    place = f"{HERE}:{line}: `gradient = synk"
    match = rf"^the gradient of v \(made in {place}\.grad\(.*`\) is"
    with pytest.warns(synk.SplitWarning, match=match):
        synk.function([x], [], updates={v: v - gradient}, local=True)
    place = f"{HERE}:{line + 1}: `step = v - .*`"
    match = rf"with v replicated, and that is .* \({place}\)"
    f = synk.function([x], (v * x).mean(), updates={v: step}, mode=PY, local=True)
    with synk.session(2):
        f(np.arange(4.0))
        with pytest.warns(synk.SplitWarning, match=match):
            f(np.arange(4.0))


def test_other_messages_name_the_line_as_well(two_ranks):
    x, loss = penalised()
    place = f"{HERE}:{line_after('the loss is made here')}"
    f = synk.function([x], (loss, "sum"), mode=PY)
    match = f"made in {place}.*combined by 'sum'"
    with pytest.raises(synk.SerialMismatch, match=match):
        f(np.arange(4.0), check="serial")
    y = pt.dvector("y")
    g = synk.function([y], (2 * y, "sum"), mode=PY)
    match = rf"output 0 .*made in {HERE}:\d+.*'sum'"
    with pytest.raises(synk.ShapeMismatch, match=match):
        g(np.ones(3))
