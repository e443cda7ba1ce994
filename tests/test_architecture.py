"""The house plan, enforced: which room imports which, how large files grow, how quickly the command answers."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import brim

REPOSITORY = Path(__file__).parent.parent
SOURCE = REPOSITORY / "src" / "brim"

# Each room may import those in the lines above it. Rooms in one line never import each other.
LAYERS = (
    ("errors",),
    ("quantities",),
    ("settings",),
    ("tree",),
    ("hardware",),
    ("ops",),
    ("program",),
    ("techniques", "transforms", "models", "data", "profiling", "compiled"),
    ("bridges",),
    ("training",),
    ("planner",),
    ("tuning",),
    ("scaling",),
    ("runfile",),
    ("supervisor",),
    ("cli",),
    ("demo", "__main__"),
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}

MOST_LINES_PER_FILE, MOST_LINES_PER_FUNCTION = 400, 60
# Imports that take a tenth of a second and more.
HEAVY = ("jax", "jaxlib", "numpy", "optax", "equinox", "grain", "orbax", "tyro", "rich", "matplotlib", "tokenizers")

FILES = sorted(SOURCE.rglob("*.py"))
RELATIVE = [str(path.relative_to(SOURCE)) for path in FILES]


@functools.cache
def parsed(file: str) -> ast.Module:
    return ast.parse((SOURCE / file).read_text(encoding="utf-8"))


def module_of(file: str) -> str:
    parts = ("brim", *Path(file).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(file): file for file in RELATIVE}


def room_of(module: str) -> str | None:
    """The room of a module of brim: its file or folder under src/brim; None for `brim` itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else None


def imports_of(file: str) -> Iterator[tuple[int, str]]:
    """(line, module) of every import of brim, also those inside functions and for type checkers only."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = module_of(file).split(".")
            package = package if file.endswith("__init__.py") else package[:-1]
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for name in node.names:
                inner = f"{source}.{name.name}"
                yield node.lineno, inner if inner in MODULES else source


def brim_imports_of(file: str) -> list[tuple[int, str]]:
    return [(line, module) for line, module in imports_of(file) if module.split(".")[0] == "brim"]


@pytest.mark.parametrize("file", [file for file in RELATIVE if file != "__init__.py"])
def test_a_room_imports_only_rooms_above_it(file):
    room = room_of(module_of(file))
    assert room in LEVEL, f"`{room}` has no place in the order; give it one in LAYERS"
    wrong = [
        f"line {line}: {room} imports {module}"
        for line, module in brim_imports_of(file)
        if room_of(module) not in (None, room) and LEVEL[room_of(module)] >= LEVEL[room]
    ]
    assert wrong == []


def test_the_package_itself_imports_no_room_when_it_is_imported():
    assert brim_imports_of("__init__.py") == []


def test_modules_do_not_import_in_circles():
    graph = {
        module: {target for _, target in brim_imports_of(file) if target in MODULES and target != module}
        for module, file in MODULES.items()
    }
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, with the circle


@pytest.mark.parametrize("file", RELATIVE)
def test_files_and_functions_stay_short(file):
    lines = len((SOURCE / file).read_text(encoding="utf-8").splitlines())
    assert lines <= MOST_LINES_PER_FILE
    functions = (node for node in ast.walk(parsed(file)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    long = {node.name: node.end_lineno - node.lineno + 1 for node in functions}
    assert {name: lines for name, lines in long.items() if lines > MOST_LINES_PER_FUNCTION} == {}


@pytest.mark.parametrize("file", RELATIVE)
def test_nothing_is_left_for_later(file):
    marks = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
    assert marks.findall((SOURCE / file).read_text(encoding="utf-8")) == []


def test_the_public_names_are_sorted_and_all_there():
    assert brim.__all__ == sorted(brim.__all__)
    assert all(getattr(brim, name) is not None for name in brim.__all__)
    assert set(brim.__all__) <= set(dir(brim))
    with pytest.raises(AttributeError, match="no attribute `nonsense`"):
        _ = brim.nonsense


@pytest.mark.parametrize(
    "program",
    ["import brim", "from brim.cli import main; main(['--help'])", "from brim.cli import main; main(['plam'])"],
)
def test_import_and_help_load_nothing_heavy(program):
    check = f"import sys; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", f"{program}\n{check}"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_answers_at_once():
    command = [sys.executable, "-m", "brim", "--help"]

    def seconds() -> float:
        start = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True)
        return time.perf_counter() - start

    # The best of five: a busy machine makes a try slower, never faster.
    assert min(seconds() for _ in range(5)) < 0.5


# ---- the lock files

LOCKS = REPOSITORY / "requirements"


def pins(lock: str) -> set[str]:
    lines = (LOCKS / lock).read_text(encoding="utf-8").splitlines()
    return {line.rstrip(" \\") for line in lines if line[:1].isalnum()}


def test_each_lock_holds_the_smaller_one():
    assert pins("base.lock") < pins("dev.lock") < pins("plan.lock")


@pytest.mark.parametrize("lock", ["base.lock", "dev.lock", "plan.lock"])
def test_a_lock_pins_by_hash_and_names_no_place(lock):
    text = (LOCKS / lock).read_text(encoding="utf-8")
    assert len(pins(lock)) > 20
    entries = re.split(r"^(?=[a-zA-Z0-9])", text, flags=re.MULTILINE)[1:]
    assert all("==" in entry and "--hash=sha256:" in entry for entry in entries)
    assert "://" not in text
    assert "index-url" not in text
    assert "find-links" not in text
