"""What holds of the tests as a whole: ``python tests/floors.py`` prints and checks it.

No test of `tests/behaviour` knows an inside of synk, few tests patch one, those of
`tests/parts` fork nothing, each section of the docs has tests in the table of promises,
and the tests do not grow without bound.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, pairwise
from pathlib import Path

TESTS = Path(__file__).resolve().parent
SYNK = TESTS.parent / "synk"
DOCS = TESTS.parent / "docs"
FLOORS = ("behaviour", "parts", "whole")

MOST_FILES, MOST_LINES, MOST_PATCHING = 201, 48_562, 8
"""What is not to grow: these numbers only come down."""

PUBLIC = {"synk"} | {
    f"synk.{name}"
    for name in (
        *("ops", "updates", "rules", "callbacks", "compat", "pymc", "nn", "files"),
        *("synkhronos", "synkhronos.extensions", "theano", "errors", "torch", "keras"),
    )
}
"""Modules whose names are for users: docs/api.rst, and the names of old scripts."""

WITHOUT_PROMISES = ("api", "changes", "design", "index")
"""Pages of which other things are true: docstrings, the past, the inside."""

_HEADING = re.compile(r"(=+|-+|~+|\^+)")


@dataclass
class Seen:
    """What a file of tests has of synk's inside.

    `private` are names that are imported, `attributes` those with a leading underscore,
    of anything but `self` and `cls`, `patched` what of synk is set for a test, and
    `modules` what is imported, without synk's.
    """

    private: list[str] = field(default_factory=list)
    attributes: list[str] = field(default_factory=list)
    patched: list[str] = field(default_factory=list)
    modules: set[str] = field(default_factory=set)


@cache
def names_of_synk() -> frozenset[str]:
    """Return the names of the package for users, as it lists them."""
    tree = ast.parse((SYNK / "__init__.py").read_text())
    listed = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return frozenset([*ast.literal_eval(listed), "__version__", "__all__"])


def is_public(module: str, name: str) -> bool:
    """Tell whether ``from module import name`` is for users."""
    if f"{module}.{name}" in PUBLIC:
        return True
    if module == "synk":
        return name in names_of_synk()
    return module in PUBLIC and not name.startswith("_")


@cache
def seen(path: Path) -> Seen:
    """Return what a file has of synk's inside."""
    found, names = Seen(), {"synk"}
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module.split(".")[0] != "synk":
                found.modules.add(node.module.split(".")[0])
                continue
            for alias in node.names:
                names.add(alias.asname or alias.name)
                if not is_public(node.module, alias.name):
                    found.private.append(f"{node.module}.{alias.name}")
        elif isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.split(".")[0]
                if root != "synk":
                    found.modules.add(root)
                elif alias.name not in PUBLIC:
                    found.private.append(alias.name)
        elif isinstance(node, ast.Attribute) and is_inner(node):
            found.attributes.append(ast.unparse(node))
    found.patched = [what for what in patches(tree) if root_of(what) in names]
    return found


def is_inner(node: ast.Attribute) -> bool:
    """Tell whether an attribute is an inside of something else than the test's own."""
    of_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
    is_private = node.attr.startswith("_") and not node.attr.startswith("__")
    return is_private and not of_own


def patches(tree: ast.AST) -> Iterator[str]:
    """Yield what is patched by `monkeypatch` and `unittest.mock`, as it is written."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        method, of = node.func.attr, ast.unparse(node.func.value)
        sets = method in ("setattr", "setitem", "delattr", "delitem") and "patch" in of
        if (sets or of == "mock") and node.args:
            yield ast.unparse(node.args[0])


def root_of(what: str) -> str:
    """Return the name that an expression, or a dotted name in quotes, begins with."""
    return re.split(r"\W", what.strip("'\""), maxsplit=1)[0]


def tests_of(floor: str) -> list[Path]:
    """Return the files of a floor that have tests."""
    return sorted((TESTS / floor).rglob("test_*.py"))


def module_of(name: str, beside: Path) -> Path | None:
    """Return the file of a module that tests share, if it is one."""
    for folder in (beside.parent, TESTS / "support"):
        if (folder / f"{name}.py").exists():
            return folder / f"{name}.py"
    return None


def with_shared(path: Path) -> set[Path]:
    """Return a file and those of the tests' own modules that it imports."""
    found, todo = set(), [path]
    while todo:
        path = todo.pop()
        if path not in found:
            found.add(path)
            modules = (module_of(name, path) for name in seen(path).modules)
            todo += [module for module in modules if module is not None]
    return found


def insides() -> Iterator[str]:
    """Yield what files of the behaviour know of synk's inside."""
    files: set[Path] = set()
    for path in tests_of("behaviour"):
        files |= with_shared(path)
    for path in sorted(files):
        found = seen(path)
        # Of libraries some have none but private names; it is synk that is meant here.
        inner = [name for name in found.attributes if not is_of_a_library(name)]
        for what in (*found.private, *inner, *found.patched):
            yield f"{path.relative_to(TESTS)}: {what}"


def is_of_a_library(name: str) -> bool:
    """Tell whether an attribute is that of a module that is not synk's."""
    libraries = "os", "sys", "socket", "np", "pt", "pytensor", "jax", "theano"
    return root_of(name) in libraries


_FORKS = re.compile(
    r"synk\.(session|fork)\(|\btwo_ranks\b|\branks[,)] *->|def test\w*\(.*\branks\b"
    r"|one_and_three_ranks|in_a_child|\bsubprocess\b|multiprocessing|os\.fork\("
)


def forking() -> Iterator[str]:
    """Yield what files of parts begin processes with."""
    for path in tests_of("parts"):
        for made in _FORKS.finditer(path.read_text()):
            yield f"{path.relative_to(TESTS)} forks: {made[0]}"


def ordered() -> Iterator[str]:
    """Yield files that conftest puts first, and that there are not."""
    names = {path.stem for floor in FLOORS for path in tests_of(floor)}
    tree = ast.parse((TESTS / "conftest.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ORDERS:
            for part in ast.walk(node.value):
                if isinstance(part, ast.Constant) and part.value not in names:
                    yield f"conftest.py puts {part.value} first, which is not there"


ORDERS = ("FORKING", "LONG")


def patching() -> list[Path]:
    return [path for path in sorted(TESTS.rglob("*.py")) if seen(path).patched]


def sections(page: Path) -> list[str]:
    """Return the headings of a page of the docs."""
    lines = page.read_text().splitlines()
    return list(
        dict.fromkeys(
            above.replace("`", "").strip()
            for above, line in pairwise(lines)
            if _HEADING.fullmatch(line)
            and 4 <= len(line) >= len(above) > 0
            and not re.fullmatch(r"[=\-~^ ]+", above)
        )
    )


@cache
def functions_of(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def promises() -> Iterator[str]:
    """Yield what the table of promises lacks."""
    table = tomllib.loads((TESTS / "behaviour" / "promises.toml").read_text())
    files = {path.name: path for floor in FLOORS for path in tests_of(floor)}
    pages: set[str] = set()
    for page in sorted(DOCS.glob("*.rst")):
        if page.stem in WITHOUT_PROMISES:
            continue
        pages.add(page.name)
        told, there = table.get(page.name, {}), sections(page)
        for section in there:
            if not told.get(section):
                yield f"{page.name}, {section!r}: no promise"
        for section in told.keys() - set(there):
            yield f"{page.name} has no section {section!r}"
    yield from (f"there is no page {page}" for page in table.keys() - pages)
    for page_name, told in table.items():
        for promise, tests in chain.from_iterable(map(dict.items, told.values())):
            for test in tests.split():
                name, _, function = test.partition("::")
                if name not in files or function not in functions_of(files[name]):
                    yield f"{page_name}, {promise!r}: there is no {test}"


def main() -> int:
    """Print sizes by floor, and what is not as it should be."""
    files = sorted(TESTS.rglob("*.py"))
    sizes = {path: len(path.read_text().splitlines()) for path in files}
    print(f"{'':10}{'files':>7}{'lines':>8}{'private':>9}{'patching':>10}")
    for floor in (*FLOORS, "support", "bench"):
        of_it = [path for path in files if path.is_relative_to(TESTS / floor)]
        private = sum(bool(seen(path).private) for path in of_it)
        patch = sum(bool(seen(path).patched) for path in of_it)
        lines = sum(sizes[path] for path in of_it)
        print(f"{floor:10}{len(of_it):7}{lines:8}{private:9}{patch:10}")
    print(f"{'all':10}{len(files):7}{sum(sizes.values()):8}")
    wrong = [*insides(), *forking(), *ordered(), *promises()]
    if len(patching()) > MOST_PATCHING:
        wrong.append(f"{len(patching())} files patch synk, and not {MOST_PATCHING}:")
        wrong += [f"    {path.relative_to(TESTS)}" for path in patching()]
    for what, many, most in (
        ("files", len(files), MOST_FILES),
        ("lines", sum(sizes.values()), MOST_LINES),
    ):
        if many > most:
            wrong.append(f"there are {many} {what}, and {most} at most are wanted")
    print(*wrong, sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
