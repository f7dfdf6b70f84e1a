"""Imports run downward only: no room knows a room above it or beside it."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import runpy
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath
from unittest.mock import MagicMock

import pytest
from modules import module_names

ROOT = Path(__file__).resolve().parents[2]

# Rooms of one line never import each other. From the lowest to the highest.
LAYERS = [
    {
        "units",
        "files",
        "_cached",
        "_caller",
        "_advice",
        "_first_line",
        "_frames",
        "_missing",
        "_terminal",
        "_traceback_filter",
        "_version",
    },
    # Errors speak of sizes, so they stand on units; checks, of names that are near.
    {"errors", "_checks", "_html", "_tables", "_tensorflow_names"},
    {"_core", "archives", "documents", "timeline"},
    {"ops"},
    {"graph"},
    {"plan", "memory", "onnx"},
    {"devices"},
    {"config"},
    {"runtime", "workspaces"},
    {"data", "testing", "pytest_plugin"},
    {"nn"},
    {"models", "evaluation", "interop", "torch", "parallel", "compression"},
    {"commands"},
    {"cli"},
    {"__main__"},
]
RANK = {room: rank for rank, rooms in enumerate(LAYERS) for room in rooms}

# What a room refuses although it stands below.
REFUSES = {
    "devices": {"graph", "plan"},
    "_core": {"graph", "plan"},
    "files": {"units"},
    "graph": {"_core", "devices"},
    "ops": {"_core"},
    "memory": {"graph", "plan"},
    "onnx": {"_core"},
}
# Public modules that share a name: `experimental` is TensorFlow's, in two rooms, and
# `image` Keras's, of ops and of preprocessing.
NAMESAKES = {"__init__", "experimental", "image"}
CYTHON_IMPORT = re.compile(
    r"^\s*(?:from\s+memcfg(?:\.(?P<under>\w+)\S*|)\s+c?import\s+\(?(?P<names>[\w, ]+)"
    r"|c?import\s+memcfg\.(?P<plain>\w+))",
    re.MULTILINE,
)


@cache
def imported_names(path: Path) -> set[str]:
    """Name what a source imports, at its top or anywhere else, with its module."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def own_names(path: Path) -> set[str]:
    """Those of them that are memcfg's."""
    return {name for name in imported_names(path) if name.split(".")[0] == "memcfg"}


def imported_modules(path: Path) -> set[str]:
    """Name the rooms that a source imports."""
    if path.suffix != ".py":
        return cython_imports(path.read_text(encoding="utf-8"))
    return {name.split(".")[1] for name in own_names(path) if "." in name}


def cython_imports(text: str) -> set[str]:
    found = set()
    for match in CYTHON_IMPORT.finditer(text):
        if match["names"] and not match["under"]:
            found |= {name.split()[0] for name in match["names"].split(",")}
        else:
            found.add(match["under"] or match["plain"])
    return found


def room_of(path: Path, package: Path) -> str:
    return path.relative_to(package).parts[0].removesuffix(path.suffix)


def violations(package: Path) -> list[str]:
    found = []
    for path in sorted(package.rglob("*")):
        if path.suffix not in {".py", ".pyx", ".pxd", ".pxi", ".pyi"}:
            continue
        room = room_of(path, package)
        if room == "__init__":
            continue  # the package itself names its rooms and stands above them
        assert room in RANK, f"{path} is in a room that no layer names"
        found += [
            f"{path.relative_to(package)} imports {other}"
            for other in imported_modules(path) - {room, "__version__"}
            if RANK[other] >= RANK[room] or other in REFUSES.get(room, ())
        ]
    return found


def test_no_import_runs_upward_or_sideways():
    package = ROOT / "memcfg"
    assert violations(package) == []
    seen = {other for path in package.rglob("*.py") for other in imported_modules(path)}
    assert {
        "units",
        "errors",
        "_core",
        "ops",
        "graph",
        "plan",
        "devices",
        "data",
        "nn",
    } <= seen


def test_all_rooms_of_the_layers_exist():
    package = ROOT / "memcfg"
    rooms = {path.name.removesuffix(".py") for path in package.iterdir()}
    assert RANK.keys() <= rooms


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("plan/search/_share.py", "from memcfg.devices import CpuDevice"),
        ("plan/search/_share.py", "def f():\n    import memcfg.runtime"),
        ("plan/search/_share.py", "from memcfg import memory"),
        ("ops/_a.py", "from memcfg.graph import Graph"),
        ("graph/_a.py", "if TYPE_CHECKING:\n    from memcfg.plan import Plan"),
        ("devices/cpu/_a.py", "from memcfg.graph import Graph"),
        ("units.py", "from memcfg.errors import FormatError"),
        ("_core/engine.pyx", "from memcfg.plan import Plan"),
        ("_core/engine.pyx", "    from memcfg import config"),
        ("_core/native.pxd", "cimport memcfg.devices.cpu"),
        ("_core/pools.pxi", "from memcfg.plan import Plan"),
        ("_core/engine.pyi", "from memcfg.graph._graph import Graph"),
    ],
)
def test_a_planted_import_is_found(tmp_path, where, text):
    path = tmp_path / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert len(violations(tmp_path)) == 1


def test_a_downward_import_is_not_found(tmp_path):
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime" / "_a.py").write_text(
        "from memcfg import errors\nfrom memcfg.plan import Plan\nimport numpy"
    )
    assert violations(tmp_path) == []


# The rooms of `plan`, from the lowest to the highest: each imports those before it.
PLAN_ROOMS = ("format", "search", "methods")


def is_for_types(path: Path) -> bool:
    """Whether a source imports methods for type checkers alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    return not any(
        isinstance(node, ast.ImportFrom) and node.module == "memcfg.plan.methods"
        for node in ast.walk(tree)
    )


def plan_violations(package: Path) -> list[str]:
    """List imports upward within `plan`, and those of methods from elsewhere."""
    found = []
    for path in sorted(package.rglob("*.py")):
        where = path.relative_to(package).parts
        if where == ("plan", "__init__.py") and is_for_types(path):
            continue
        if where[0] == "plan" and where[1] in PLAN_ROOMS:
            refused = PLAN_ROOMS[PLAN_ROOMS.index(where[1]) + 1 :]
        else:
            refused = () if where[0] == "commands" else ("methods",)
        found += [
            f"{path.relative_to(package)} imports {name}"
            for name in sorted(own_names(path))
            if name.split(".")[1:2] == ["plan"] and {*name.split(".")[2:3]} & {*refused}
        ]
    return found


def test_the_rooms_of_plan_stand_on_each_other():
    package = ROOT / "memcfg"
    assert plan_violations(package) == []
    folders = {path.parent.name for path in (package / "plan").glob("*/*.py")}
    assert folders == {*PLAN_ROOMS}
    assert [path.name for path in (package / "plan").glob("*.py")] == ["__init__.py"]


# Folders that are lists: a file is an entry, and nobody reads them all.
LISTS = {
    "devices/cuda/_sources",
    "models",
    "nn/layers",
    "nn/ops",
    "ops",
    "plan/methods",
}
_MOST = 15  # private files of another folder; public ones are names that users import


def crowded(package: Path) -> list[str]:
    """List the folders with more files than a reader keeps in mind."""
    sizes = Counter(path.parent for path in package.rglob("_*.py"))
    return [
        f"{folder.relative_to(package)}: {size}"
        for folder, size in sizes.items()
        if size > _MOST and folder.relative_to(package).as_posix() not in LISTS
    ]


def test_a_folder_has_at_most_fifteen_files():
    assert crowded(ROOT / "memcfg") == []


def test_a_crowded_folder_is_found(tmp_path):
    for folder in ("plan/methods", "plan/search", "nn"):
        (tmp_path / folder).mkdir(parents=True)
        for number in range(_MOST + 1):
            private = "" if folder == "nn" else "_"
            (tmp_path / folder / f"{private}{number}.py").touch()
    assert crowded(tmp_path) == ["plan/search: 16"]


@pytest.mark.parametrize(
    ("where", "text"),
    [
        (
            "plan/format/_judge.py",
            "from memcfg.plan.search._share import share",
        ),
        ("plan/format/_judge.py", "from memcfg.plan import methods"),
        ("plan/search/_auto.py", "from memcfg.plan.methods._chen import chen_sqrt"),
        ("plan/search/_auto.py", "def f():\n    import memcfg.plan.methods._chen"),
        ("plan/__init__.py", "from memcfg.plan.methods import chen_sqrt"),
        ("runtime/_program.py", "from memcfg.plan.methods._rotor import rotor"),
        ("torch/_a.py", "if TYPE_CHECKING:\n    from memcfg.plan.methods import rotor"),
    ],
)
def test_a_planted_import_of_a_method_is_found(tmp_path, where, text):
    path = tmp_path / where
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert len(plan_violations(tmp_path)) == 1


@pytest.mark.parametrize(
    ("where", "text"),
    [
        (
            "plan/methods/_a.py",
            "from memcfg.plan.search._share import share",
        ),
        ("plan/search/_a.py", "from memcfg.plan.format._plan import Plan"),
        (
            "plan/__init__.py",
            "if TYPE_CHECKING:\n    from memcfg.plan.methods import rotor",
        ),
        ("commands/_a.py", "from memcfg.plan.methods._rotor import rotor"),
        ("torch/_a.py", "from memcfg.plan.search._auto import Auto"),
    ],
)
def test_an_import_that_plan_allows_is_not_found(tmp_path, where, text):
    path = tmp_path / where
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert plan_violations(tmp_path) == []


def test_methods_are_loaded_when_one_is_first_named():
    script = (
        "import sys, memcfg.nn as nn, memcfg.plan as plan\n"
        "nn.Sequential([nn.Input((2,)), nn.Dense(1)]).compile('sgd', 'mse')\n"
        "before = 'memcfg.plan.methods' in sys.modules\n"
        "print(before, plan.rotor().name, 'memcfg.plan.methods' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "rotor", "True"]


def test_one_room_imports_pytorch():
    rooms = {
        room_of(path, ROOT / "memcfg")
        for path in (ROOT / "memcfg").rglob("*.py")
        if any(name.split(".")[0] == "torch" for name in imported_names(path))
    }
    assert rooms == {"torch"}


# The rooms of `torch`, and those that each may import. `trace` says what a step is and
# needs, `plans` keeps plans, `spill` says where tensors go, `state` what lies there for
# good, `ranks` what wrappers hold; what limits, plans or saves stands on them.
TORCH_ROOMS = {
    "limit": set(),
    "trace": {"spill"},
    "spill": set(),
    "plans": set(),
    "state": {"trace", "spill"},
    "ranks": {"trace"},
    "saved": {"limit", "trace", "spill"},
    "budget": {"limit", "trace", "spill", "plans", "state", "ranks", "saved"},
    "estimate": {"trace", "budget"},
    "integrations": {"trace", "budget", "estimate"},
}


def torch_violations(package: Path) -> list[str]:
    """List what a room of `torch` imports of another that it may not know."""
    return [
        f"{path.relative_to(package)} imports {name}"
        for room, known in TORCH_ROOMS.items()
        for path in sorted((package / "torch" / room).rglob("*.py"))
        for name in sorted(own_names(path))
        if name.split(".")[1:2] == ["torch"]
        and not {*name.split(".")[2:3]} <= {room, *known}
    ]


def test_the_rooms_of_torch_stand_on_each_other():
    folder = ROOT / "memcfg" / "torch"
    assert torch_violations(ROOT / "memcfg") == []
    assert {path.parent.name for path in folder.glob("*/*.py")} == {*TORCH_ROOMS}


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("torch/trace/_a.py", "from memcfg.torch.budget._step import Step"),
        ("torch/spill/_a.py", "def f():\n    import memcfg.torch.saved._codes"),
        ("torch/saved/_a.py", "from memcfg.torch import budget"),
        (
            "torch/budget/_a.py",
            "def f():\n    import memcfg.torch.estimate._eager",
        ),
    ],
)
def test_a_planted_import_between_rooms_of_torch_is_found(tmp_path, where, text):
    path = tmp_path / where
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert len(torch_violations(tmp_path)) == 1


def module_graph(package: Path) -> dict[str, set[str]]:
    """Map each module to those that it imports, `TYPE_CHECKING` or not."""
    paths = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        paths[".".join(parts).removesuffix(".__init__")] = path
    graph = {}
    for name, path in paths.items():
        found = own_names(path)
        modules = {each if each in paths else each.rpartition(".")[0] for each in found}
        graph[name] = modules & set(paths) - {name}
    return graph


def test_no_module_imports_one_that_imports_it():
    graph = module_graph(ROOT / "memcfg")
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_a_cycle_of_imports_is_found(tmp_path):
    package = tmp_path / "memcfg"
    package.mkdir()
    (package / "a.py").write_text("from memcfg.b import x")
    (package / "b.py").write_text("if TYPE_CHECKING:\n    from memcfg.a import y")
    with pytest.raises(CycleError):
        TopologicalSorter(module_graph(package)).prepare()


def test_no_two_modules_have_one_name():
    paths = [*(ROOT / "memcfg").rglob("*.py"), *(ROOT / "memcfg").rglob("*.pyx")]
    twins = {name for name, n in Counter(path.stem for path in paths).items() if n > 1}
    assert twins == NAMESAKES


def bases_deep(kind: type) -> int:
    """Count the public classes of ours from a class to the furthest base.

    A private base is what a few classes of one module share, and no noun of its own.
    """
    if not kind.__module__.startswith("memcfg."):
        return 0
    public = not kind.__name__.startswith("_")
    return public + max(map(bases_deep, kind.__bases__), default=0)


# InfeasiblePlanError, which users catch, is the third in the chain: its kind that is
# also PyTorch's OutOfMemoryError, and a private one.
DEEP = {"InfeasibleStepError", "NoRoomError"}


def test_no_chain_of_our_public_classes_is_longer_than_three():
    deep = set()
    for name in module_names():
        for kind in vars(importlib.import_module(name)).values():
            if inspect.isclass(kind) and bases_deep(kind) > 3:
                deep.add(kind.__qualname__)
    assert deep <= DEEP  # PyTorch's room is not imported everywhere


def declared_extensions(monkeypatch) -> dict[str, list[str]]:
    """Run setup.py on stand-ins of the build tools; return sources by extension."""
    stand_in = MagicMock()
    stand_in.build_ext = object
    stand_in.Extension = lambda name, sources, **_: (name, sources)
    stand_in.cythonize = lambda extensions, **_: extensions
    for name in (
        *("Cython", "Cython.Build", "setuptools", "setuptools.command"),
        *("setuptools.command.build_ext", "setuptools.errors"),
    ):
        monkeypatch.setitem(sys.modules, name, stand_in)
    monkeypatch.chdir(ROOT)
    runpy.run_path("setup.py")
    return dict(stand_in.setup.call_args.kwargs["ext_modules"])


def test_exactly_one_extension_links_the_native_core(monkeypatch):
    """Two that do would have two sets of limits."""
    extensions = declared_extensions(monkeypatch)
    owners = [
        name
        for name, sources in extensions.items()
        if any("_native/src" in source for source in sources)
    ]
    assert owners == ["memcfg._core.engine"]
    linked = [source for source in extensions[owners[0]] if "_native/src" in source]
    present = [str(p.relative_to(ROOT)) for p in ROOT.glob("_native/src/**/*.cpp")]
    assert sorted(linked) == sorted(present)


# Tests go through public names. These may look inside: those that say so in their
# name, and the tests and helpers of the extension module.
INSIDE = (
    "test_internals_*.py",
    "tests/support/internals.py",
    # Doubles of NVIDIA's libraries, which stand in for private modules.
    *(f"tests/support/{name}_stand_in.py" for name in ("cublaslt", "cudnn")),
    *(f"tests/support/{name}.py" for name in ("cuda_compiler", "cudnn_plans", "gpus")),
)
NATIVE = ("tests/core/*", "tests/support/*")
PRIVATE = re.compile(r"\bmemcfg(?:\.\w+)*?\._[a-z]\w*(?:\.\w+)*")
FROM = re.compile(r"^\s*from (memcfg[\w.]*) import (\([^)]*\)|[^\n]*)", re.MULTILINE)


def looks_inside(text: str, where: PurePosixPath) -> set[str]:
    """Name what a test must not use: modules and names with a leading underscore.

    Also those in strings, by which tests replace things, and in scripts that they run.
    """
    if any(where.match(pattern) for pattern in INSIDE):
        return set()
    found = {match[0] for match in PRIVATE.finditer(text)}
    for match in FROM.finditer(text):
        names = re.findall(r"\b_[a-z]\w*", match[2])
        found |= {f"{match[1]}.{name}" for name in names}
    if any(where.match(pattern) for pattern in NATIVE):
        found = {name for name in found if not name.startswith("memcfg._core")}
    return found


def test_tests_use_public_names():
    paths = {
        PurePosixPath(path.relative_to(ROOT).as_posix()): path
        for path in (ROOT / "tests").rglob("*.py")
        if path.parent != Path(__file__).parent  # tests of the files themselves
    }
    assert [
        f"{where} uses {name}"
        for where, path in sorted(paths.items())
        for name in sorted(looks_inside(path.read_text(encoding="utf-8"), where))
    ] == []
    assert sum(path.name.startswith("test_internals_") for path in paths.values()) < 15


@pytest.mark.parametrize(
    ("where", "text", "found"),
    [
        ("tests/nn/test_a.py", "from memcfg.nn import _model", 1),
        ("tests/nn/test_a.py", "from memcfg.nn._model import Model", 1),
        ("tests/nn/test_a.py", "def f():\n    import memcfg.nn._model", 1),
        ("tests/nn/test_a.py", "from memcfg.nn import (\n    A,\n    _b,\n)", 1),
        ("tests/nn/test_a.py", "from memcfg._core import Pool", 1),
        ("tests/core/test_a.py", "from memcfg._core import Pool", 0),
        ("tests/core/test_a.py", "from memcfg.nn import _model", 1),
        ("tests/nn/test_internals_a.py", "from memcfg.nn import _model", 0),
        ("tests/nn/test_a.py", "from memcfg import __version__, nn", 0),
        ("tests/nn/test_a.py", "replace('memcfg.nn._model.Model', None)", 1),
    ],
)
def test_a_private_name_in_a_test_is_found(where, text, found):
    assert len(looks_inside(text, PurePosixPath(where))) == found
