"""The rooms of synk: imports lead down, and never in a circle."""

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import synk

SOURCE = Path(synk.__file__).parent

FLOORS = (
    "errors signals",
    "compiled user_frames also_named",
    "reduce_ops times memory",
    "ops workers callbacks reduce_tree draws",
    "comm compiler updates",
    "cluster",
    "nn rules",
    "engines",
    "theano",
    "programs finders choice",
    "ranks",
    "variables exchange",
    "files",
    "report",
    "call",
    "train compat pymc parallel",
    "torch",
    "keras",
    "synk",
    "synkhronos",
    "commands __main__",
)
"""Files and folders of the package, from the ground up; see docs/design.rst."""

FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms.split()}


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


def imported(module: str) -> set[str]:
    """Return the modules of synk that one imports, wherever in its file."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: 1 - node.level or None] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                found.add(full if full in MODULES else base)
    return (found & MODULES.keys()) - {module}


@cache
def imports() -> dict[str, set[str]]:
    """Return the modules that each imports: read when a test asks, not to collect."""
    return {module: imported(module) for module in MODULES}


def room_of(module: str) -> str:
    """Return the folder or file right below synk that a module is in."""
    return module.split(".")[1] if "." in module else module


def test_every_module_has_a_floor_and_its_imports_are_seen():
    assert {room_of(module) for module in MODULES} == FLOOR.keys()
    assert "synk.ranks.session" in imports()["synk.ranks.forking"]
    assert "synk.engines.jax" in imports()["synk.engines"]
    assert "synk.cluster.launcher" in imports()["synk.commands.script"]


def test_the_design_notes_list_the_rooms():
    page = (SOURCE.parent / "docs" / "design.rst").read_text()
    drawn = page.partition("holds the list)::")[2].partition("``call``, ``var")[0]
    assert FLOOR.keys() - {"__main__"} <= set(re.findall(r"[a-z_]+", drawn))


def test_no_import_leads_to_a_room_of_the_same_floor_or_above():
    upwards = [
        f"{module} -> {other}"
        for module, others in imports().items()
        for other in sorted(others)
        if room_of(module) != room_of(other)
        and FLOOR[room_of(other)] >= FLOOR[room_of(module)]
    ]
    assert not upwards
    # Nothing but scripts imports the driver for old models.
    compat = {module for module in MODULES if room_of(module) == "compat"}
    assert compat
    assert not [each for each in MODULES.keys() - compat if imports()[each] & compat]


def test_no_modules_import_each_other_in_a_circle():
    # A package's own file stands for its folder, so it is left out of its members' way.
    graph = {
        module: {other for other in others if not module.startswith(f"{other}.")}
        for module, others in imports().items()
    }
    assert len(list(TopologicalSorter(graph).static_order())) == len(MODULES)
    # Nor is the circle hidden in what is for types alone.
    assert not [m for m, path in MODULES.items() if "TYPE_CHECKING" in path.read_text()]


DECIDING = {
    "choice",
    "compiler",
    "engines",
    "nn",
    "ops",
    "programs",
    "reduce_ops",
    "reduce_tree",
}
DECIDING |= {"rules", "updates"}
"""What chooses and computes."""

CLOCKS = {"clock_gettime", "monotonic", "perf_counter", "process_time", "thread_time"}
CLOCKS |= {f"{name}_ns" for name in CLOCKS} | {"timeit"}


def test_no_clock_decides_anything():
    for module, path in MODULES.items():
        if room_of(module) not in DECIDING:
            continue
        used = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                used.update(alias.name for alias in node.names)
            elif isinstance(node, ast.Attribute):
                used.add(node.attr)
                if isinstance(node.value, ast.Name) and node.value.id == "time":
                    assert node.attr == "sleep", module
        assert not CLOCKS & used, module
    for module, others in imports().items():
        if room_of(module) == "choice":
            assert "times" not in map(room_of, others), module
