"""Every command and code block of the documentation: cheaply by default, for real when slow."""

import contextlib
import importlib.util
import io
import re
import runpy
import shlex
import shutil
import subprocess
import sys

import pytest

from sebulba.config.loading import load_config, split_arguments
from tests.docs.blocks import ALL_BLOCKS, DOCUMENTS, KINDS, ROOT, blocks_of

_DEADLINE_S = 1800
_MODULE = re.compile(r"(?:\S*/)?python3? -m (?P<module>(?:sebulba|benchmarks)[\w.]*)(?P<rest>.*)")

COMMANDS = [
    pytest.param(block, command, id=f"{block.place} {command[:60]}")
    for block in ALL_BLOCKS
    if block.kind == "sh" and block.is_run
    for command in block.commands
]


@pytest.mark.parametrize("block", ALL_BLOCKS, ids=lambda block: block.place)
def test_block_is_of_a_known_kind_and_is_run_or_says_why_not(block):
    assert block.kind in KINDS
    assert block.note is None or re.fullmatch(r"not run: .{10,}", block.note)


@pytest.mark.parametrize(("block", "command"), COMMANDS)
def test_command_is_one_of_the_project_with_flags_that_it_knows(block, command, monkeypatch):
    found = _MODULE.search(command)
    if found is None:
        return  # Of the shell alone.
    assert importlib.util.find_spec(found["module"]) is not None
    arguments = shlex.split(found["rest"].split(">")[0], comments=True)
    if found["module"] == "sebulba.train":
        _check_training_command(arguments, written=_files_before(block))
        return
    help_text = _help(found["module"], monkeypatch)
    flags = [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]
    assert [flag for flag in flags if flag not in help_text] == []


@pytest.mark.parametrize(
    "block",
    [block for block in ALL_BLOCKS if block.kind == "python" and block.is_run],
    ids=lambda block: block.place,
)
def test_python_block_compiles(block):
    compile(block.text, block.place, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_document_runs_from_top_to_bottom(document, tmp_path):
    checkout = _copy_of_the_checkout(tmp_path / "sebulba")
    for block in blocks_of(document):
        if not block.is_run:
            continue
        if block.file_name is not None:
            (checkout / block.file_name).write_text(block.text)
        elif block.kind == "yaml":
            config = checkout / "block.yaml"
            config.write_text(block.text)
            load_config(str(config))
        else:
            _run(block, checkout)


def _files_before(block):
    return {each.file_name for each in blocks_of(block.document) if each.line < block.line}


def _check_training_command(arguments, written):
    arguments = [each for each in arguments if each not in ("-h", "--help")]
    positionals, flags = split_arguments(arguments)
    path = positionals[0] if positionals else None
    is_given = path is not None and (ROOT / path).is_file()
    assert path is None or is_given or path in written or path.isupper() or "RUN_DIR" in path, path
    flags.pop("--seeds", None)
    if is_given:
        load_config(str(ROOT / path), [f"{flag}={text}" for flag, text in flags.items()])


def _help(module, monkeypatch):
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        runpy.run_module(module, run_name="__main__", alter_sys=False)
    return printed.getvalue()


def _copy_of_the_checkout(path):
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    for name in names:
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    return path


def _run(block, directory):
    script = "\n".join(block.commands) if block.kind == "sh" else block.text
    interpreter = ["bash", "-e"] if block.kind == "sh" else [sys.executable]
    result = subprocess.run(
        [*interpreter, "-c", script] if block.kind == "sh" else [*interpreter, "-"],
        cwd=directory,
        input=None if block.kind == "sh" else script,
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
    )
    assert result.returncode == 0, f"{block.place}\n{script}\n{result.stdout}\n{result.stderr}"
