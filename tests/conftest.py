"""Fixtures: sessions of every size, and a look at the world after every test."""

import collections
import functools
import gc
import os
import signal
import sys
import tempfile
import time
import types
import weakref
from pathlib import Path

import budget
import hypothesis
import psutil
import pytensor
import pytest

import synk
from synk.ranks import replication

hypothesis.settings.register_profile("long")  # which files look for: more examples

FORMATS = (".npz", ".safetensors")
WORLD_SIZES = (1, 2, 3, 5)

# Shells start what runs in the background deaf to Ctrl-C, and nohup to hang-ups. Tests
# send both signals, to programs that inherit this.
for _number, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

FORKING = (
    *("test_fault_table", "test_reliability_interrupts", "test_leaks"),
    *("test_reliability_scripts", "test_reliability_recovery"),
    *("test_reliability_new_python", "test_introduction_sessions"),
)
"""Files that fork most. They come first: forking takes a large process far longer."""

LONG = (
    *("test_demos", "test_precision", "test_on_nodes", "test_nn_jax", "test_resnet50"),
    *("test_introduction_refusals", "test_docs", "test_theano_lasagne"),
    *("test_rules_trainer", "test_gpu_jax_mode", "test_zoo", "test_mirror"),
    *("test_theano_programs", "test_moving", "test_bench"),
    *("test_modes_engines", "test_gpu_padding", "test_device_collectives"),
    *("test_same_bits", "test_same_numbers", "test_shared_variables_collectives"),
    *("test_shared_variables_state_machine", "test_resnet50_runs", "test_node_faults"),
    *("test_rows_on_nodes", "test_rules_on_nodes", "test_rows_to_device"),
    *("test_modes_mended", "test_times_on_nodes", "test_moving_parallel"),
)
"""Files that take longest: a worker that got one last would keep the other waiting.

These, and those that fork most, are left out where ``-m "not slow"`` asks for a look.
"""


@functools.cache
def _imports_much(path: Path) -> bool:
    """Tell whether a file's tests may import JAX, scikit-learn or pandas, 40 to 140 MB.

    All later sessions have it too: one of two ranks takes 0.04 s of CPU in a process of
    150 MB, and 0.12 s in one of 600 MB. Scripts that `import_from` finds load digits.
    """
    text = path.read_text()
    words = ("jax", "in_a_child", "sklearn", "pandas", "import_from")
    return any(word in text for word in words)


def _order(item) -> tuple[bool, bool, int]:
    """Return what items are sorted by: in the end, the short files of doctests."""
    name, order = item.path.stem, (*FORKING, *LONG)
    place = order.index(name) if name in order else len(order)
    late = name not in FORKING and _imports_much(item.path)
    return not name.startswith("test_"), late, place


# They import packages that may not be installed, or are scripts to be run.
collect_ignore = ["bench", "support"]


def pytest_configure(config):
    """Have ranks outnumber cores quietly; all processes share what XLA compiles.

    And have OpenBLAS's threads sleep when there is no work for them, in workers and
    scripts: they would watch for it, 30 ms of a core for each thread of each process.
    """
    config.addinivalue_line(
        "filterwarnings", "ignore::synk.errors.OversubscriptionWarning"
    )
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # 2**4 ticks, the least
    os.environ.setdefault("SYNK_ENGINE", "default")  # the same in every run
    # Scripts find synk compiled, which they would compile anew each time.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if hasattr(config, "workerinput"):  # a worker has the rest from its starter
        return
    if budget.is_asked_for():
        config.stash[SLOWNESS] = budget.slowness()
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    cache = tempfile.TemporaryDirectory(prefix="synk-tests-jax-")
    config.add_cleanup(cache.cleanup)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = cache.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Look for doctests in synk only: here it would import scripts, and so JAX.

    All workers collect all files, and a session costs a large process far more.
    """
    return [found for found in (yield) if type(found) is pytest.Module]


def pytest_collection_modifyitems(items):
    """Have the files that fork most come first, and those late that import much.

    Of each kind, the longest come first. Of each file, tests that find sessions of one
    size come together.
    """
    items.sort(key=_order)
    places: dict[Path, int] = {}
    for item in items:
        places.setdefault(item.path, len(places))
        if item.path.stem in (*FORKING, *LONG):
            item.add_marker("slow")
    items.sort(key=lambda item: (places[item.path], size_of(item)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Have synk choose an engine for examples of the docs, as it does for a reader."""
    with pytest.MonkeyPatch.context() as patch:
        if isinstance(item, pytest.DoctestItem) or item.path.stem == "test_docs":
            patch.setenv("SYNK_ENGINE", "auto")
        return (yield)


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist nobody calls it
def pytest_xdist_auto_num_workers(config):
    """Have three workers, where there are two cores and more than one file to run.

    With two a fifth of the cores' time was idle, as ranks and scripts wait for others.
    Not more: nearly every test has ranks, and so several busy processes, of its own.
    """
    paths = [Path(arg.partition("::")[0]) for arg in config.args]
    one_file = len(paths) == 1 and paths[0].is_file()
    return 0 if one_file else 3 if len(os.sched_getaffinity(0)) > 1 else 1


def seconds_by_file(config) -> collections.Counter[str]:
    """Return how long the tests of each file took, of all workers."""
    seconds = collections.Counter()
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    for reports in reporter.stats.values() if reporter else ():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.location[0]] += report.duration
    return seconds


def pytest_terminal_summary(terminalreporter):
    """Print how long the tests of each floor and file took, the longest first."""
    seconds = seconds_by_file(terminalreporter.config)
    if len(seconds) > 1:
        terminalreporter.section("seconds by file")
        for line in budget.lines(seconds):
            terminalreporter.write_line(line)
    if SLOWNESS in terminalreporter.config.stash:
        slow = terminalreporter.config.stash[SLOWNESS]
        terminalreporter.write_line(budget.verdict(seconds.total(), slow)[1])


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    """Let a run of all tests fail that took longer than the tests may take."""
    stash = session.config.stash
    if SLOWNESS in stash:  # something else may have run when the tests began
        stash[SLOWNESS] = min(stash[SLOWNESS], budget.slowness())
    if SLOWNESS in stash and session.exitstatus == 0:
        total = seconds_by_file(session.config).total()
        if budget.verdict(total, stash[SLOWNESS])[0]:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


SLOWNESS = pytest.StashKey[float]()


def descendants() -> list[psutil.Process]:
    """Return this process's children, and theirs.

    To find them, psutil reads of every process of the machine. Where the kernel lists
    a thread's children, zombies among them, it is seen first that there are some.
    """
    lists = list(Path("/proc/self/task").glob("*/children"))
    try:
        if lists and not any(path.read_text() for path in lists):
            return []
    except OSError:
        pass  # a thread has ended meanwhile
    return psutil.Process().children(recursive=True)


def leftovers(known: frozenset[int] = frozenset()) -> list[str]:
    """Return what a test left behind: processes that are not known, segments."""
    children = []
    for child in descendants():
        if child.pid in known:
            continue
        try:
            if "resource_tracker" not in " ".join(child.cmdline()):
                children.append(f"process {child.pid} ({child.status()})")
        except psutil.ZombieProcess:
            children.append(f"process {child.pid} (zombie)")
        except psutil.NoSuchProcess:
            pass  # it has ended meanwhile
    return children + [*map(str, Path("/dev/shm").glob(f"*synk-{os.getpid()}-*"))]


class OpenSession:
    """The session that stays open from test to test of a file, if there is one.

    Tests that take `ranks` or `two_ranks`, and no fixture of their file's, may find a
    session that tests before them have used. Others have none open when they begin.
    """

    def __init__(self) -> None:
        self.size = 0
        self.pids: frozenset[int] = frozenset()
        self.affinity: set[int] = set()

    def provide(self, size: int) -> None:
        """Have a session of `size` ranks open, all of them alive."""
        if not (self.size == size and self.is_well()):
            self.close()
            self.affinity = os.sched_getaffinity(0)
            synk.fork(size)
            self.size = size
            self.pids = frozenset(child.pid for child in descendants())
            # Two workers of the tests have a session each. Pinned, the first ranks of
            # both would share one core, and all that these do between calls.
            for pid in (0, *self.pids):
                os.sched_setaffinity(pid, self.affinity)

    def is_well(self) -> bool:
        """Tell whether it is still there as it was forked, with all of its ranks."""
        if not (self.size and synk.is_forked() and synk.size() == self.size):
            return False
        found = {child.pid for child in descendants() if child.status() != "zombie"}
        return self.pids <= found

    def close(self) -> None:
        """End it, if it is open, and assert that nothing of it is left."""
        if self.size:
            self.size, self.pids = 0, frozenset()
            synk.close()
            assert_nothing_is_left()
            assert os.sched_getaffinity(0) == self.affinity


def assert_nothing_is_left(known: frozenset[int] = frozenset()) -> None:
    """Assert that only processes that are known are left, and no segments."""
    deadline = time.monotonic() + 5
    while (left := leftovers(known)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left, f"left behind: {left}"


OPEN = OpenSession()

SHARING = {
    *("ranks", "two_ranks", "world", "earlier_modules", "request"),
    *("tmp_path", "tmp_path_factory", "monkeypatch", "capsys", "capfd", "recwarn"),
    *("checkpoint", "scans_in_python", "graphs_in_python"),
}
"""The fixtures of tests that may find a session open: none depends on its fork."""


def shares(item) -> bool:
    """Tell whether a test may find a session open, and leave it so."""
    names = set(item.fixturenames)
    others = names - set(getattr(item, "callspec", NOTHING).params) - SHARING
    return not others and not names.isdisjoint({"ranks", "two_ranks"})


NOTHING = types.SimpleNamespace(params={})


def size_of(item) -> int:
    """Return how many ranks the session has that a test finds; 0 if it finds none."""
    if not shares(item):
        return 0
    return 2 if "two_ranks" in item.fixturenames else item.callspec.params["ranks"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Note whether a test has failed: the next one gets a session of its own."""
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


FAILED = pytest.StashKey[bool]()


def settings() -> tuple[str, ...]:
    """Return what a test must leave as it was: others follow it."""
    config = pytensor.config
    return config.linker, config.optimizer, config.cxx, config.floatX


@pytest.fixture(autouse=True)
def world(request):
    """Assert after every test that no process, segment or semaphore is left."""
    shared = shares(request.node)
    if not shared:
        OPEN.close()
    before = os.sched_getaffinity(0)
    config = pytensor.config
    flags = config.mode, config.traceback__limit
    others = settings()
    yield
    is_as_before = settings() == others
    # PyTensor sets both while it compiles, the limit to 0. A test's interrupt just as
    # that begins or ends leaves them so: no variable made later would know its line.
    config.mode, config.traceback__limit = flags
    if shared and OPEN.is_well() and FAILED not in request.node.stash:
        assert_nothing_is_left(OPEN.pids)
        assert is_as_before, "the test has changed settings of PyTensor's"
        return
    if shared:
        OPEN.close()
        return
    forked = synk.is_forked()
    synk.close()
    assert_nothing_is_left()
    assert not forked, "the test did not close its session"
    assert is_as_before, "the test has changed settings of PyTensor's"
    assert os.sched_getaffinity(0) == before


@pytest.fixture(autouse=True, scope="module")
def earlier_modules():
    """Spare collections of garbage what earlier files left, late a second for each.

    And spare `synk.distribute` functions that these files have left: it would compile
    all of them, hundreds, those without a mode with numba.
    """
    gc.collect()
    gc.freeze()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replication, "_functions", weakref.WeakSet())
        yield
        OPEN.close()


def session_of(size: int, request):
    """Have a test find a session of ranks, one of its own if it does not share."""
    if shares(request.node):
        OPEN.provide(size)
        yield size
    else:
        with synk.session(size):
            yield size


@pytest.fixture(params=WORLD_SIZES, ids=lambda n: f"{n}ranks")
def ranks(request):
    """Fork a session of 1, 2, 3 and 5 ranks in turn; the number of ranks."""
    yield from session_of(request.param, request)


@pytest.fixture
def two_ranks(request):
    yield from session_of(2, request)


@pytest.fixture(params=FORMATS)
def checkpoint(request, tmp_path):
    """Return a path to save to, in each format."""
    if request.param == ".safetensors":
        pytest.importorskip("safetensors", reason="safetensors is not installed")
    return tmp_path / f"checkpoint{request.param}"


@pytest.fixture
def import_from(monkeypatch):
    """Return a function that has scripts of a folder imported, until the test ends.

    Scripts of other folders have the same names, so that none may stay in sys.modules.
    """
    folders = []

    def add(folder: Path) -> None:
        monkeypatch.syspath_prepend(folder)
        folders.append(Path(folder))

    yield add
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "").parent in folders:
            del sys.modules[name]


@pytest.fixture
def graphs_in_python():
    """Have Ops that are graphs themselves run in Python, not compiled by numba.

    They take the default mode, whatever the mode of the function that they are in, if
    that is not a mode for C.
    """
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        yield


@pytest.fixture
def scans_in_python(graphs_in_python):
    """Have scans run in Python, too: of few steps, as C takes seconds to compile each.

    In FAST_COMPILE they are compiled to C if there is a compiler.
    """
    with pytensor.config.change_flags(cxx=""):
        yield
