"""What `synk.function` and a call refuse, and what they make of their arguments."""

import os
import re

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.sparse
from children import run_python
from processes import TOTAL, running
from pytensor.compile import UnusedInputError
from pytensor.graph.utils import MissingInputError
from pytensor.sparse import csr_matrix
from pytensor.tensor.random.type import random_generator_type
from pytensor.typed_list import TypedListType
from reference import PY, assert_same

import synk


def x_of(dtype="float64", ndim=1, name="x"):
    return pt.tensor(name, dtype=dtype, shape=(None,) * ndim)


def bad_arguments():
    """Yield what is wrong, the arguments, and the error they must raise."""
    x, y, c = x_of(), x_of(name="y"), pt.scalar("c")
    w = pytensor.shared(np.zeros(3), name="w")
    n = pytensor.shared(0, name="n")
    rng = pytensor.shared(np.random.default_rng(0), name="rng")
    flag = pt.vector("flag", dtype="bool")
    z = pt.vector("z", dtype="complex128")
    yield "inputs no list", (x,), {}, TypeError, "inputs must be a list"
    yield "generator", ((v for v in [x]),), {}, TypeError, "inputs must be a list"
    yield "no variable", (["x"],), {}, TypeError, "tensor variables, got 'x'"
    yield "array", ([np.zeros(3)],), {}, TypeError, "tensor variables, got array"
    yield "shared input", ([w], w.sum()), {}, TypeError, "w.*sliceable_shareds"
    yield "generator input", ([rng],), {}, TypeError, "rng"
    sparse = pytensor.shared(scipy.sparse.csr_matrix(np.eye(2)), name="S")
    m = csr_matrix("m")
    for kind, given, advice in (
        ("strict", pytensor.In(x, strict=True), "convert arrays before the call"),
        ("downcast", pytensor.In(x, allow_downcast=True), "allow_input_downcast=True"),
        ("name", pytensor.In(x, name="rows"), "x.name ="),
        ("sparse", m, "pytensor.shared"),
        ("list", TypedListType(x.type)("l"), "pass the arrays of a list as inputs"),
        ("generator", random_generator_type("g"), "pytensor.shared"),
    ):
        error = TypeError, ValueError
        yield kind, ([given], y.sum()), {}, error, advice
        yield f"{kind}, broadcast", ([y], y.sum(), [given]), {}, TypeError, advice
    t = pt.tensor("t", shape=(4, 3))
    yield "fixed shape", ([t], t.sum()), {}, ValueError, "make it with shape="
    yield "sparse output", ([], (sparse, "sum")), {}, TypeError, "S.*cannot be reduced"
    some = None, None, None, [sparse]
    yield "slice sparse", ([x], x, *some), {}, TypeError, "shared t"
    yield "twice", ([x, x], x.sum()), {}, ValueError, "input x is given twice"
    yield "in both", ([x], x.sum(), [x]), {}, ValueError, "input x is given twice"
    r, said = pt.row("r"), r"r has a fixed first dimension of 1.*\(None, \.\.\.\)"
    yield "fixed length", ([r], r.sum()), {}, ValueError, said
    yield "bcast no list", ([x], x, c), {}, TypeError, "bcast_inputs must be a list"
    yield "no output", ([x], "x"), {}, TypeError, "outputs must be.*got 'x'"
    yield "triple", ([x], (x, "sum", 1)), {}, TypeError, "outputs must be"
    yield "op of variables", ([x], (x, x, "sum")), {}, TypeError, "outputs must be"
    said = r"outputs must be.*list\(outputs.values\(\)\)"
    yield "a dict", ([x], {"x": x}), {}, TypeError, said
    yield "unknown op", ([x], (x, "mean")), {}, ValueError, "x: the op.*'avg'.*'mean'"
    yield "op of list", ([x], [(x, ["sum"])]), {}, (TypeError, ValueError), "op"
    yield "avg of bools", ([flag], (flag, "avg")), {}, TypeError, "flag.*'min'.*'max'"
    yield "max of complex", ([z], (z, "max")), {}, TypeError, "complex.*no 'max'"
    yield "generator out", ([], (rng, "sum")), {}, TypeError, "rng.*cannot be reduced"
    yield "no pairs", ([], None, None, [w]), {}, (TypeError, ValueError), "update"
    yield "short", ([], None, None, [(w,)]), {}, ValueError, "an update is"
    yield "no shared", ([x], None, None, [(x, x)]), {}, TypeError, "shared.*got x"
    yield "two", ([], None, None, [(w, w), (w, w)]), {}, ValueError, "w has two updates"
    s = pytensor.shared(0.0, "s")
    yield "gather", ([], None, None, [(s, s, "gather")]), {}, ValueError, "update of s"
    yield "dtype", ([], None, None, {n: n * 0.5}), {}, TypeError, "onvert"
    yield "ndim", ([], None, None, {w: w.sum()}), {}, TypeError, "onvert"
    yield "givens", ([y], x.sum(), None, None, {x: c}), {}, TypeError, "onvert"
    yield "slice y", ([x], x, None, None, None, [y]), {}, TypeError, "shared tensor"
    yield "slice n", ([], n, None, None, None, [n]), {}, ValueError, "n has no dimens"
    yield "slice rng", ([], rng, None, None, None, [rng]), {}, TypeError, "shared tens"
    yield "slice twice", ([], w, None, None, None, [w, w]), {}, ValueError, "twice"
    yield "unused", ([x, y], x.sum()), {}, UnusedInputError, "given y, which no output"
    yield "unused c", ([x], x.sum(), [c]), {}, UnusedInputError, "given c"
    yield "unused w", ([x], x, None, None, None, [w]), {}, UnusedInputError, "given w"
    yield "argument", ([x], x.sum()), {"nane": "f"}, TypeError, "no argument 'nane'"
    yield "missing", ([y], x.sum() + y.sum()), {}, MissingInputError, "x"
    yield "missing c", ([x], x.sum()), {"updates": {w: w * c}}, MissingInputError, "c"
    yield "mode", ([x], x.sum()), {"mode": "FASTER"}, Exception, "FASTER"
    yield "pad", ([x], x.sum()), {"pad": 64}, TypeError, "True or False, got 64"
    for word in ("streams", "statistics", "bits"):
        said = f"{word} must be one of"
        yield word, ([x], x.sum()), {word: "common"}, ValueError, said


def test_a_bad_argument_is_refused_where_the_function_is_made():
    for what, args, kwargs, error, match in bad_arguments():
        try:
            with pytest.raises(error, match=match):
                synk.function(*args, **kwargs)
        except BaseException as failure:
            failure.add_note(f"case: {what}")
            raise


def test_an_unused_input_may_be_meant():
    x, y = x_of(), x_of(name="y")
    synk.function([x, y], x.sum(), on_unused_input="ignore")
    with pytest.warns(UserWarning, match="given y"):
        synk.function([x, y], x.sum(), on_unused_input="warn")
    with pytensor.config.change_flags(on_unused_input="ignore"):
        synk.function([x, y], x.sum())


def test_the_arguments_are_not_changed():
    x, y, c = x_of(), x_of(name="y"), pt.scalar("c")
    w = pytensor.shared(np.zeros(3))
    inputs, outputs, bcast = [x, y], [x.sum(), (y, "gather")], [c]
    updates, givens, sliceable = [(w, w + c, "sum")], {y: y * 2}, []
    copies = [list(v) for v in (inputs, outputs, bcast, updates, givens, sliceable)]
    synk.function(inputs, outputs, bcast, updates, givens, sliceable)
    after = [list(v) for v in (inputs, outputs, bcast, updates, givens, sliceable)]
    assert after == copies


def test_lists_may_be_tuples_where_pytensor_takes_them():
    x, c = x_of(), pt.scalar("c")
    w = pytensor.shared(0.0)
    f = synk.function((x,), [x.sum() * c], (c,), ((w, w + 1),), ((c, c + 1),), ())
    assert f.output_modes == ["sum"]
    assert f.update_modes == [None]


def test_what_a_local_function_does_not_combine_is_averaged_with_a_warning():
    x = x_of()
    with pytest.warns(synk.SplitWarning, match=r"output 0 \(Sqrt.*Sqrt") as caught:
        f = synk.function([x], pt.sqrt(x.mean()), local=True)
    assert f.output_modes == ["avg"]
    assert [warning.filename for warning in caught] == [__file__]


# -- calls -----------------------------------------------------------------------------


def bad_calls():
    """Yield what is wrong, arguments of x, y and b, options, and the error."""
    four, five = np.zeros(4), np.zeros(5)
    fine, short = (four, four, 1.0), ([1.0], 1.0)
    yield "one missing", (four,), {}, TypeError, "misses a value for y"
    yield "all missing", (), {}, TypeError, "x, y, b"
    yield "too many", (*fine, 2.0), {}, TypeError, "3 arguments, got 4"
    yield "no such name", (four, four), {"z": 1.0}, TypeError, "no input.*'z'"
    yield "twice", (four, four), {"x": four}, TypeError, "two values.*'x'"
    yield "dtype", (four * 1j, four, 1.0), {}, TypeError, r"input x.*float64"
    yield "ndim", (four[:, None], four, 1.0), {}, TypeError, "input x.*dimensions"
    yield "ndim of all", (four, four, four), {}, TypeError, "input b.*dimensions"
    yield "lengths", (four, five, 1.0), {}, ValueError, "'x': 4, 'y': 5"
    data = synk.data([1], dtype="int8")
    said = "input x is float64.*int8.*synk.data"
    yield "Data of another dtype", (data, *short), {}, TypeError, said
    data = synk.data([[1.0]])
    said = "input x is float64 with 1 dim"
    yield "Data of other dimensions", (data, *short), {}, TypeError, said
    freed = synk.data(four, name="gone")
    freed.free_memory()
    yield "freed", (freed, four, 1.0), {}, ValueError, "'gone'.*holds nothing"
    empty = synk.data(dtype="float64", ndim=0)
    yield "empty", (four, four, empty), {}, ValueError, "holds nothing"
    for batch, error, said in (
        ([0, 4], IndexError, "row 4, out of range for 4"),
        (np.array([-5]), IndexError, "row -5"),
        (5, IndexError, "first 5 of 4"),
        (-1, IndexError, "first -1 of 4"),
        (np.array([2**63], "uint64"), IndexError, "row 9223372036854775808"),
        ([True], IndexError, "mask of 1"),
        (np.ones(5, bool), IndexError, "mask of 5 for 4 rows"),
        (True, TypeError, "bool"),
        (["a"], TypeError, "U1"),
        (slice(0, 3, 0), ValueError, "step"),
        ([0.5], TypeError, "float64"),
        ([[0]], ValueError, "2 dimensions"),
        ("ab", (TypeError, ValueError), "batch must"),
        (1.5, ValueError, r"got .*1\.5"),
        ({"a": 1}, (TypeError, ValueError), "batch"),
    ):
        yield f"batch {batch}", fine, {"batch": batch}, error, said
    for option, value, error, said in (
        ("num_slices", 0, ValueError, "at least 1, got 0"),
        ("num_slices", 1.5, TypeError, "integer"),
        ("output_subset", [2], IndexError, "output_subset has 2, out of range for 2"),
        ("output_subset", ["loss"], TypeError, "integer"),
        ("batch_s", slice(2), ValueError, "no sliceable_shareds"),
    ):
        yield f"{option} {value}", fine, {option: value}, error, said


def test_a_bad_call_is_refused_before_any_rank_is_told(two_ranks):
    x, y, b = pt.vector("x"), pt.vector("y"), pt.scalar("b")
    n = pytensor.shared(0)
    outputs = [(x * y, "gather"), (b, None)]
    f = synk.function([x, y], outputs, [b], updates={n: n + 1}, mode=PY, name="f")
    for calls in (0, 1):  # as its first call, and after another
        for what, args, options, error, match in bad_calls():
            try:
                with pytest.raises(error, match=match):
                    f(*args, **options)
            except BaseException as failure:
                failure.add_note(f"case: {what}")
                raise
        assert synk.gather(n).tolist() == [calls, calls]
        product, _ = f([1.0, 2.0, 3.0], [4.0, 5.0, 6.0], 0.0)
        assert_same(product, [4.0, 10, 18])
        assert synk.gather(n).tolist() == [calls + 1, calls + 1]


def test_slices_of_nothing_are_refused(two_ranks):
    b = pt.scalar("b")
    f = synk.function([], (b, "sum"), [b], mode=PY)
    with pytest.raises(ValueError, match="num_slices=2 needs scattered inputs"):
        f(1.0, num_slices=2)
    with pytest.raises(ValueError, match="no scattered inputs"):
        f(1.0, batch=1)
    assert f(1.0) == 2


def test_outputs_whose_shapes_differ_between_ranks_say_so(two_ranks):
    x = pt.matrix("x")
    f = synk.function([x], [(x.sum(axis=1), "sum"), (x.T, "gather")], mode=PY, name="f")
    with pytest.raises(synk.ShapeMismatch, match=r"output 0 .*\(2,\), \(1,\).*'sum'"):
        f(np.ones((3, 2)), output_subset=[0])
    with pytest.raises(ValueError, match=r"output 1 .*\(2, 2\), \(2, 1\).*'gather'"):
        f(np.ones((3, 2)), output_subset=[1])
    total, _ = f(np.ones((2, 2)))
    assert_same(total, [4.0])


# -- what is told

SLOW = """
    import io, threading
    from pytensor.compile.mode import Mode
    from pytensor.link.basic import PerformLinker

    class SlowLinker(PerformLinker):
        seconds = 0

        def make_all(self, *args, **kwargs):
            time.sleep(self.seconds if synk.rank() == 0 else 0)
            return super().make_all(*args, **kwargs)

    def slow(name, seconds):
        SlowLinker.seconds = seconds
        x = pt.matrix("x", dtype="float64")
        mode = Mode(SlowLinker(), None)
        return synk.function([x], (x.sum(), "sum"), mode=mode, name=name)

    synk.fork(2)
    print("fast", slow("fast", 0)(ROWS), flush=True)
"""

IN_TERMINAL = """
    f, g = slow("total", 3), slow("other" * 20, 3)  # the line comes after two
    synk.distribute()
    print("done", f(ROWS), [t.name for t in threading.enumerate()], flush=True)
    SlowLinker.seconds = 30
    try:
        f(ROWS, check="serial")
    except KeyboardInterrupt:
        print("end", [t.name for t in threading.enumerate()])
    synk.close()
"""

IN_FILE = """
    print("unasked", slow("unasked", 3)(ROWS), flush=True)
    synk.compile_notice(True)
    print("asked", slow("total", 3)(ROWS), flush=True)
    stderr, sys.stderr = sys.stderr, None
    print("nowhere", slow("nowhere", 0)(ROWS), flush=True)
    sys.stderr = io.StringIO()
    sys.stderr.close()
    print("closed", slow("closed", 3)(ROWS), flush=True)
    sys.stderr = stderr
    synk.close()
"""

COMPILING = (
    r"synk: compiling total\(x\) for 2 ranks, a mode of its own \(Python\): \d+ s"
)
COMPILED = COMPILING.replace("compiling", "compiled").replace(r"\d+", r"\d+\.\d")


def lines_to(script, start: str) -> list[str]:
    """Return what comes before a line that starts so."""
    before = len(script.seen)
    script.expect(start, 60)
    return [line.rstrip() for line in script.seen[before:-1] if line.strip()]


def test_a_terminal_sees_the_function_the_ranks_the_mode_and_the_seconds(tmp_path):
    with running(SLOW + IN_TERMINAL, tmp_path, terminal=True, COLUMNS="100") as script:
        assert lines_to(script, f"fast {TOTAL}") == []
        told = lines_to(script, "done")
        *notice, last = [line for line in told if "total(x)" in line]
        assert notice
        for line in notice:  # each rewriting is one
            assert re.fullmatch(COMPILING, line), line
        assert re.fullmatch(COMPILED, last), last
        assert float(last.split()[-2]) >= 3.0
        cut = r"synk: compiled (other)+\w*\.\.\.: \d\.\d s"
        assert [line for line in told if re.fullmatch(cut, line)]
        assert max(map(len, told)) == 99
        # The thread has ended, and a call that compiles nothing says nothing.
        assert script.seen[-1].endswith("['MainThread']")
        script.expect("synk: compiling total(x) for 1 rank")
        os.write(script.terminal, b"\x03")
        script.expect("synk: stopped compiling total(x) for 1 rank")
        assert script.expect("end") == "['MainThread']"
        assert script.wait() == 0


def test_a_file_sees_nothing_and_two_lines_if_asked_for(tmp_path):
    with running(SLOW + IN_FILE, tmp_path, SYNK_COMPILE_NOTICE="") as script:
        assert lines_to(script, "unasked") == [f"fast {TOTAL}"]
        first, last = lines_to(script, "asked")
        assert re.fullmatch(COMPILING, first)
        assert re.fullmatch(COMPILED, last)
        # A stream that is not there, or is gone, does no harm.
        assert lines_to(script, f"nowhere {TOTAL}") == []
        assert lines_to(script, f"closed {TOTAL}") == []
        assert script.wait() == 0


def test_what_is_no_answer_is_refused():
    for asked in ("yes", 2, 0.5):
        with pytest.raises(TypeError, match="True, False or None"):
            synk.compile_notice(asked)


# -- nothing else, with empty caches

STEP = """
import numpy as np, pytensor, pytensor.tensor as pt, synk
x, w = pt.matrix("x"), pytensor.shared(np.full(6, 0.1))
loss = (pt.tanh(x @ w) ** 2).mean()  # few Ops: each takes long to compile
updates = synk.updates.sgd(synk.grad(loss, [w]), [w], 0.1)
step = synk.function([x], loss, updates=updates, mode="NUMBA")
synk.fork(2)
print(step(np.ones((8, 6))) > 0)
synk.close()
"""


def test_a_step_of_a_network_prints_nothing(tmp_path):
    """As it does in JAX mode: `test_gpu_jax_mode.py` looks at what XLA says."""
    flags = f"{os.environ.get('PYTENSOR_FLAGS', '')},base_compiledir={tmp_path}/code"
    done = run_python("-c", STEP, PYTENSOR_FLAGS=flags.lstrip(","))
    assert (done.stdout, done.stderr) == ("True\n", "")
