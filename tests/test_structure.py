"""The layers of the project: who may import whom, and who may start threads."""

import ast
import pathlib
import re

import pytest

from agents import AGENTS

ROOT = pathlib.Path(__file__).parent.parent

# A file imports from lower layers and from its own, which must stay free of cycles.
LAYERS = [
    # What flows, what an agent is, what a config says.
    ["pytree", "types", "agent", "errors", "exit_codes", "signals", "config", "host_memory"],
    # Pieces that agents may use as well.
    ["prng", "reductions", "returns", "distributions", "devices", "ledger", "queues", "mapping"],
    ["value_rescaling", "tanh_gaussian", "running_moments"],
    ["timing", "schedule", "episodes", "window", "replay"],
    # The world outside.
    ["envs", "metrics", "checkpoints", "run_dir", "schedule_file", "reporting"],
    ["hosts"],
    # One cycle, one actor, one update.
    ["validation", "progress", "memory_plan", "watchdog"],
    ["acting", "learning"],
    ["assembly", "run_state", "autosave"],
    ["evaluation"],
    # The only module with threads.
    ["runner"],
    ["outputs", "endings"],
    ["training", "checking"],
    ["planning", "rerunning", "evaluating"],
    # Command lines.
    ["processes"],
    ["train", "evaluate", "plot", "report", "check", "rerun", "plan", "launch"],
]
AGENT_LAYERS = 4
# Modules and packages that the command line needs before it knows that it will run.
JAX_FREE = {
    "launch",
    "config",
    "errors",
    "exit_codes",
    "signals",
    "train",
    "rerun",
    "processes",
    "evaluate",
    "check",
    "plan",
}

LAYER_OF = {name: layer for layer, names in enumerate(LAYERS) for name in names}
SOURCES = sorted((ROOT / "sebulba").rglob("*.py"))
AGENT_SOURCES = sorted((ROOT / "agents").rglob("*.py"))


def module_of(path):
    """Returns the first part of a file's module below `sebulba`: a module or a package."""
    return path.relative_to(ROOT / "sebulba").parts[0].removesuffix(".py")


def top_level_imports(path):
    """Yields the modules that a file imports when it is itself imported."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (
                f"{node.module}.{alias.name}" if node.module == "sebulba" else node.module
                for alias in node.names
            )


def sebulba_imports(path):
    return {name.split(".")[1] for name in top_level_imports(path) if name.startswith("sebulba.")}


def test_every_module_has_a_layer():
    assert {module_of(path) for path in SOURCES} - {"__init__"} == set(LAYER_OF) & {
        module_of(path) for path in SOURCES
    }


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down_the_layers(path):
    module = module_of(path)
    if module == "__init__":
        return
    upward = {name for name in sebulba_imports(path) if LAYER_OF[name] > LAYER_OF[module]}
    assert upward == set()
    cyclic = {
        name
        for name in sebulba_imports(path) - {module}
        for source in SOURCES
        if module_of(source) == name and module in sebulba_imports(source)
    }
    assert cyclic == set()


@pytest.mark.parametrize("path", AGENT_SOURCES, ids=lambda path: path.name)
def test_agents_import_only_what_flows_and_pieces(path):
    too_high = {name for name in sebulba_imports(path) if LAYER_OF[name] >= AGENT_LAYERS}
    assert too_high == set()


def test_acting_and_learning_do_not_know_each_other():
    for package, other in (("acting", "learning"), ("learning", "acting")):
        for path in (ROOT / "sebulba" / package).glob("*.py"):
            assert other not in sebulba_imports(path), path


def test_only_the_runner_creates_threads():
    creators = [path.name for path in SOURCES if "Thread(" in path.read_text()]
    assert creators == ["runner.py"]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_algorithm_is_named_in_the_framework(path):
    code = re.sub(r'"""(?s:.*?)"""|#.*', "", path.read_text())
    names = set(AGENTS) - {"random"}  # the name of a module of JAX as well
    named = [name for name in names if re.search(rf"\b{name}\b", code, re.IGNORECASE)]
    assert named == []


@pytest.mark.parametrize(
    "path",
    [path for path in SOURCES if module_of(path) in JAX_FREE],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_the_command_line_is_read_without_jax(path):
    imports = {name.split(".")[0] for name in top_level_imports(path)}
    assert not imports & {"jax", "flax", "optax", "chex", "numpy", "gymnasium", "envpool"}
    assert sebulba_imports(path) <= JAX_FREE


def test_the_repository_speaks_of_itself_alone():
    texts = [
        path
        for folder in ("sebulba", "agents", "benchmarks", "configs", "docs", "tests")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".md", ".yaml", ".toml"} and path != pathlib.Path(__file__)
    ]
    foreign = re.compile(r"\.\./shared|/work/|/opt/venv|/root/")
    assert [str(path) for path in texts if foreign.search(path.read_text())] == []
