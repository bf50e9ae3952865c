"""Count the ways of a checkout, to compare two: `python -m tests.ways [CHECKOUT]`.

- the calls from the command line to the first learner cycle's update, on the stacks of its threads;
- the files that name the type of the whole config;
- what a reader of `sebulba.evaluate` may have to open: the files that it imports, however late;
- the places that build what a run's programs are made of;
- the files in which the carry of an actor is kept without a record of where that is.
"""

import ast
import json
import os
import pathlib
import re
import subprocess
import sys

_STACKS = """
import os, sys, sysconfig
from sebulba.ring import learner
def update(self, *args, **kwargs):
    frames = sys._current_frames()
    import threading
    calls = []
    for thread in (threading.main_thread(), threading.current_thread()):
        frame, stack = frames[thread.ident], []
        while frame is not None:
            name = frame.f_code.co_filename
            if "/sebulba/" in name and "site-packages" not in name:
                place = name.split("/sebulba/")[-1]
                stack.append(f"{place}: {frame.f_code.co_qualname}")
            frame = frame.f_back
        stack = [each for each in reversed(stack) if "threads.py" not in each]
        calls += [each for each in stack if each not in calls]
        if thread is threading.current_thread():
            break
    print("\\n".join(each for each in calls if "process.py" not in each), flush=True)
    os._exit(0)
learner.Learner.update = update
import importlib
sys.argv = ["train", "impala_catch", "--run-dir", sys.argv[1], "--run.mode", "threads"]
importlib.import_module("sebulba.train").main()
"""


def sources(root):
    """Returns the files of the packages by module name."""
    found = {}
    for folder in ("sebulba", "agents"):
        for path in (root / folder).rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[1:] if parts[0] == "agents" else parts)
            found[name.removesuffix(".__init__")] = path
    return found


def imported(path):
    """Returns the names that a file imports, within functions too, but not for types alone."""
    names = set()

    def visit(node):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return names


def closure(modules, start):
    """Returns the modules that are imported from `start` on."""
    reached, left = set(), {start}
    while left:
        module = left.pop()
        reached.add(module)
        for name in imported(modules[module]):
            while name and name not in modules:
                name = name.rpartition(".")[0]
            if name and name not in reached and name != "sebulba":
                left.add(name)
    return reached


def calls(root, run_dir):
    """Returns the calls from the command line to the learner's first update."""
    env = os.environ | {"PYTHONPATH": f"{root}:{root / 'agents'}"}
    command = [sys.executable, "-c", _STACKS, str(run_dir)]
    result = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=True)
    return result.stdout.splitlines()


def count(root, run_dir):
    """Returns all counts."""
    modules = sources(root)
    texts = {name: path.read_text() for name, path in modules.items()}
    evaluate = closure(modules, "sebulba.evaluate")

    def places(pattern, *, inside="sebulba"):
        return sorted(
            name
            for name, text in texts.items()
            if name.startswith(inside) and re.search(pattern, text, re.MULTILINE)
        )

    return {
        "calls to Learner.update": calls(root, run_dir),
        "files that name Config": places(r"^ *from sebulba\.config(\.schema)? import .*\bConfig\b"),
        "sebulba.evaluate reads files": len(evaluate),
        "sebulba.evaluate reads lines": sum(len(texts[name].splitlines()) for name in evaluate),
        "builds programs": places(
            r"^(?!def |class ).*\b(plan_memory|LearnerPrograms|state_initializer|Update)\("
        ),
        "keeps a carry and its place apart from Point": places(
            r"self\.carry = |carry: ActCarry  # where|tuple\[ActCarry, int\]|self\._carries ="
        ),
    }


if __name__ == "__main__":
    checkout = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    print(json.dumps(count(checkout, sys.argv[2] if len(sys.argv) > 2 else "/tmp/ways"), indent=1))
