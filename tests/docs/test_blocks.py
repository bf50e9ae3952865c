"""Check every block of the documentation; the slow tests run them."""

import contextlib
import importlib.util
import io
import os
import pathlib
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import warnings

import pytest

from sebulba.config.loading import load_config, split_arguments
from sebulba.config.shipped import shipped_configs
from tests.conftest import HASTE
from tests.docs.blocks import (
    ALL_BLOCKS,
    DOCUMENTS,
    KINDS,
    LAST_LINE,
    NOTES,
    ROOT,
    anchors_of,
    blocks_of,
    inline_commands,
    links_of,
    num_fences,
)

_TIMEOUT_S = 1800
_COMMAND = re.compile(r"(?:^|\S*/|&& )sebulba (?=[a-z])")
_MODULE = re.compile(r"(?:\S*/)?python3? -m (?P<module>(?:sebulba|benchmarks)[\w.]*)(?P<rest>.*)")

COMMANDS = [
    pytest.param(block, command, id=f"{block.place} {command[:60]}")
    for block in ALL_BLOCKS
    if block.kind == "sh" and block.is_run
    for command in block.commands
]
INLINE_COMMANDS = sorted({each for document in DOCUMENTS for each in inline_commands(document)})

all_documents = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


@pytest.mark.parametrize("block", ALL_BLOCKS, ids=lambda block: block.place)
def test_block_has_a_known_kind_and_a_permitted_comment(block):
    assert block.kind in KINDS
    assert block.note is None or re.fullmatch(NOTES[block.kind], block.note)


@all_documents
def test_every_fence_of_a_document_belongs_to_a_block(document):
    assert num_fences(document) == 2 * len(blocks_of(document))


@all_documents
def test_every_link_of_a_document_leads_to_a_file_and_a_heading(document):
    for path, anchor in links_of(document):
        target = document.parent / path if path else document
        assert target.exists()
        assert anchor is None or anchor in anchors_of(target), f"{path}#{anchor}"


@pytest.mark.parametrize(("block", "command"), COMMANDS)
def test_command_exists_and_has_every_flag(block, command, monkeypatch):
    _check_command(
        command, monkeypatch, written=_files_before(block), is_wrong=block.exit_code == 2
    )


@pytest.mark.parametrize("command", INLINE_COMMANDS)
def test_command_quoted_in_the_text_exists(command, monkeypatch):
    _check_command(command.replace("[", "").replace("]", ""), monkeypatch)


@pytest.mark.parametrize(
    "block",
    [block for block in ALL_BLOCKS if block.kind == "python" and block.is_run],
    ids=lambda block: block.place,
)
def test_python_block_compiles(block):
    compile(block.text, block.place, "exec")


def test_the_readme_has_the_test_command_of_the_ci():
    *_, command, _ = (ROOT / ".ci" / "run").read_text().strip().splitlines()
    assert command in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    ("line", "is_same"),
    [
        ("actor 0 took 6.2 s in /tmp/x.", True),
        ("Again actor 0 took 6.2 s in /tmp/x.", False),
        ("actor 0 took 6.2 m in /tmp/x.", False),
    ],
)
def test_last_line_may_differ_in_numbers_and_ellipses(line, is_same):
    assert is_like(line, "actor 1 took\n5.9 s in ….\n") == is_same


@pytest.mark.slow
@all_documents
def test_document_runs_from_top_to_bottom(document, tmp_path):
    checkout = _copy_of_the_checkout(tmp_path / "sebulba")
    error = ""
    for block in blocks_of(document):
        if block.note == LAST_LINE:
            assert is_like(error.splitlines()[-1], block.text)
        elif not block.is_run:
            continue
        elif block.file_name is not None:
            (checkout / block.file_name).write_text(block.text)
        elif block.kind == "yaml":
            config = checkout / "block.yaml"
            config.write_text(block.text)
            load_config(str(config))
        else:
            error = _run(block, checkout)


def _check_command(command, monkeypatch, written=(), is_wrong=False):
    # `sebulba train` is `python -m sebulba.train`.
    found = _MODULE.search(_COMMAND.sub("python -m sebulba.", command))
    if found is None:
        return  # a command of the shell
    assert importlib.util.find_spec(found["module"]) is not None
    arguments = shlex.split(found["rest"].split(">")[0].rstrip("& "), comments=True)
    if found["module"] == "sebulba.train":
        if not is_wrong:
            _check_training_command(arguments, written)
        return
    help_text = _help(found["module"], monkeypatch)
    flags = [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]
    if found["module"] in (
        "sebulba.sweep",
        "sebulba.lag",
    ):  # The other flags are those of training.
        flags = [flag for flag in flags if "." not in flag]
    assert [flag for flag in flags if flag not in help_text] == []


def _files_before(block):
    return {each.file_name for each in blocks_of(block.document) if each.line < block.line}


def _check_training_command(arguments, written):
    arguments = [each for each in arguments if each not in ("-h", "--help", "--ray")]
    positionals, flags = split_arguments(arguments)
    path = positionals[0] if positionals else None
    is_given = path is not None and ((ROOT / path).is_file() or path in shipped_configs())
    is_of_a_run = path is not None and path.startswith(("runs/", "RUN_DIR"))
    assert path is None or is_given or path in written or path.isupper() or is_of_a_run, path
    flags.pop("--seeds", None)
    if is_given:
        path = str(ROOT / path) if (ROOT / path).is_file() else path
        load_config(path, [f"{flag}={text}" for flag, text in flags.items()])


def _help(module, monkeypatch):
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    printed = io.StringIO()
    with (
        contextlib.redirect_stdout(printed),
        contextlib.suppress(SystemExit),
        warnings.catch_warnings(),
    ):
        # runpy warns if another test has imported the module before.
        warnings.simplefilter("ignore", RuntimeWarning)
        runpy.run_module(module, run_name="__main__", alter_sys=False)
    return printed.getvalue()


def _copy_of_the_checkout(path):
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    for name in names:
        if not (ROOT / name).is_file():
            continue
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    return path


def _run(block, directory):
    """Run a block as a user would, with the packages of the checkout, and return its stderr."""
    is_shell = block.kind == "sh"
    script = "\n".join(block.commands) if is_shell else block.text
    environment = dict(os.environ)
    for name in HASTE:  # set by the tests only
        environment.pop(name, None)
    bin_directory = pathlib.Path(sys.executable).parent
    environment["PATH"] = f"{bin_directory}{os.pathsep}{environment['PATH']}"
    result = subprocess.run(
        ["bash", "-e", "-c", script] if is_shell else [sys.executable, "-"],
        cwd=directory,
        input=None if is_shell else script,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        env=environment,
    )
    assert result.returncode == block.exit_code, (
        f"{block.place}\n{script}\n{result.stdout}\n{result.stderr}"
    )
    return result.stderr


def is_like(line, example):
    """Return whether a line equals an example except for numbers, line breaks and `…`."""
    line, example = (
        re.sub(r"-?\d[\d,.]*", "#", " ".join(text.split())) for text in (line, example)
    )
    return re.fullmatch(".*".join(map(re.escape, example.split("…"))), line) is not None
