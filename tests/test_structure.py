"""The layers of the project: who may import whom, and who may start threads."""

import ast
import functools
import pathlib
import re
import tomllib

import pytest

from sebulba_agents import AGENTS

ROOT = pathlib.Path(__file__).parent.parent
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
# Packages from the bottom up, those inside of others apart.
LAYERS = [name for name in SETUPTOOLS["packages"] if name.count(".") < 2]
CONTRACT = [
    "types",
    "agent",
    "agent_check",
    "errors",
    "precision",
    "pytree",
    "process",
    "ranges",
    "references",
    "task",
]
DOORS = ["train", "evaluate", "plot", "rerun", "launch", "configs"]
DOORS += ["sweep", "lag", "compile", "verify", "diff", "__main__"]  # the command `sebulba`
OBSERVING = [
    "aot",
    "storage",
    "processes",
    "hosts",
    "evaluation",
    "export",
    "figures",
    "comparison",
    "run",
    "check",
]
HEAVY = {"jax", "flax", "optax", "chex", "numpy", "gymnasium", "envpool", "orbax"}

SOURCES = sorted((ROOT / "sebulba").rglob("*.py"))
AGENT_SOURCES = sorted((ROOT / "agents").rglob("*.py"))


def module_of(path):
    """Returns the dotted name that a file is imported by."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] == "agents" else parts
    return ".".join(parts).removesuffix(".__init__")


PATHS = {module_of(path): path for path in [*SOURCES, *AGENT_SOURCES]}
PACKAGES = sorted(module for module, path in PATHS.items() if path.name == "__init__.py")


def docstring_of(package):
    return ast.get_docstring(ast.parse(PATHS[package].read_text()), clean=False)


def files_listed_in(package):
    """Returns the files that the docstring of a package lists, a line each."""
    return re.findall(r"^    (\w+) {2,}\w", docstring_of(package), re.MULTILINE)


def room_of(module):
    """Returns the package or module at the top of `sebulba` that holds a module."""
    return (
        ".".join(module.split(".")[:2]) if module.startswith("sebulba.") else module.split(".")[0]
    )


def rank_of(module):
    room = room_of(module)
    if room in {f"sebulba.{name}" for name in CONTRACT}:
        return 0
    if room in {f"sebulba.{name}" for name in DOORS}:
        return len(LAYERS)
    return LAYERS.index(room)


@functools.cache
def imports_of(path, *, when_imported=False):
    """Returns the names that a file imports; `when_imported`: outside of functions and blocks."""
    tree = ast.parse(path.read_text())
    names = set()
    for node in tree.body if when_imported else ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def own_modules(names):
    """Returns the modules of the project that imported names lie in."""
    modules = set()
    for name in names:
        while name and name not in PATHS:
            name = name.rpartition(".")[0]
        modules |= {name} - {"", "sebulba"}
    return modules


def ids(path):
    return str(path.relative_to(ROOT))


def test_the_rooms_are_the_layers_the_contract_and_the_doors():
    rooms = {room_of(module) for module in PATHS} - {"sebulba", "sebulba_agents"}
    packages = {room for room in rooms if PATHS[room].name == "__init__.py"}
    assert packages == set(LAYERS) - {"sebulba", "sebulba_agents", "sebulba.shipped"}
    assert rooms - packages == {f"sebulba.{name}" for name in [*CONTRACT, *DOORS]}


def test_every_package_is_in_the_wheel():
    assert {*PACKAGES} | {"sebulba.shipped"} == set(SETUPTOOLS["packages"])


@pytest.mark.parametrize("path", [*SOURCES, *AGENT_SOURCES], ids=ids)
def test_imports_go_down_the_layers(path):
    module = module_of(path)
    if module == "sebulba":  # The front door, which imports what it is asked for.
        return
    others = {name for name in own_modules(imports_of(path)) if room_of(name) != room_of(module)}
    upward = {name for name in others if rank_of(name) and rank_of(name) >= rank_of(module)}
    assert upward == set()


def test_no_file_imports_itself_by_a_detour():
    graph = {module: own_modules(imports_of(path)) - {module} for module, path in PATHS.items()}
    while leaves := {module for module, imported in graph.items() if not imported & set(graph)}:
        graph = {module: imported for module, imported in graph.items() if module not in leaves}
    assert graph == {}


@pytest.mark.parametrize("path", AGENT_SOURCES, ids=ids)
def test_agents_import_the_contract_and_the_toolkit_alone(path):
    rooms = {room_of(name) for name in own_modules(imports_of(path))}
    assert rooms <= {f"sebulba.{name}" for name in [*CONTRACT, "toolkit"]} | {"sebulba_agents"}


def test_the_ring_knows_nothing_of_the_rooms_that_observe_it():
    for path in (ROOT / "sebulba" / "ring").glob("*.py"):
        rooms = {room_of(name) for name in own_modules(imports_of(path))}
        assert rooms.isdisjoint(f"sebulba.{name}" for name in OBSERVING), path


@pytest.mark.parametrize("package", PACKAGES)
def test_the_docstring_of_a_package_names_files_that_are_there(package):
    docstring = docstring_of(package)
    there = {path.name for path in PATHS[package].parent.iterdir()}
    assert set(re.findall(r"`(\w+\.py)`", docstring)) <= there


@pytest.mark.parametrize("package", [each for each in PACKAGES if files_listed_in(each)])
def test_the_docstring_of_a_package_that_lists_its_files_lists_all(package):
    files = {path.stem for path in PATHS[package].parent.glob("*.py")} - {"__init__"}
    assert set(files_listed_in(package)) == files


def test_the_files_of_the_ring_are_read_in_the_order_of_their_imports():
    """The order stands in `sebulba/ring/__init__.py`."""
    order = files_listed_in("sebulba.ring")
    for number, name in enumerate(order):
        own = {each for each in own_modules(imports_of(PATHS[f"sebulba.ring.{name}"]))}
        below = {f"sebulba.ring.{each}" for each in order[:number]}
        assert {each for each in own if room_of(each) == "sebulba.ring"} <= below, name


def test_one_file_creates_threads():
    creators = [path.name for path in SOURCES if "Thread(" in path.read_text()]
    assert creators == ["process.py"]


@pytest.mark.parametrize("path", SOURCES, ids=ids)
def test_no_algorithm_is_named_in_the_framework(path):
    code = re.sub(r'"""(?s:.*?)"""|#.*', "", path.read_text())
    names = set(AGENTS) - {"random"}  # the name of a module of JAX as well
    named = [name for name in names if re.search(rf"\b{name}\b", code, re.IGNORECASE)]
    assert named == []


@pytest.mark.parametrize("door", [*DOORS, "check.__main__", "export.__main__"])
def test_a_command_line_is_read_without_jax(door):
    reached, left = set(), {f"sebulba.{door}"}
    while left:
        module = left.pop()
        reached.add(module)
        names = imports_of(PATHS[module], when_imported=True)
        heavy = {name.split(".")[0] for name in names} & HEAVY
        assert not heavy, module
        packages = {name.rpartition(".")[0] for name in own_modules(names)} & set(PATHS)
        left |= (own_modules(names) | packages) - reached - {"sebulba"}


def test_the_repository_speaks_of_itself_alone():
    texts = [
        path
        for folder in ("sebulba", "agents", "benchmarks", "configs", "docs", "tests")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".md", ".yaml", ".toml", ".json"}
        and path != pathlib.Path(__file__)
    ]
    foreign = re.compile(r"\.\./shared|/work/|/opt/venv|/root/")
    assert [str(path) for path in texts if foreign.search(path.read_text())] == []
