"""Run directories, checkpoints and exports of somebody else: what loading them does not do."""

import json
import shutil
import sys
import zipfile

import numpy as np
import pytest
import yaml

import sebulba
from sebulba.errors import ConfigError
from sebulba.export import __main__ as export
from sebulba.export.policy import FILES
from sebulba.process import EXIT_CHECKPOINT, EXIT_CONFIG, EXIT_DONE
from sebulba.storage.checkpoints.manifest import crc32_of_json
from sebulba.storage.checkpoints.restore import CheckpointError
from sebulba.storage.names import ARRAYS, MANIFEST
from sebulba.storage.run_files import read_run
from tests.toys import ToyAgent

# The module: by its name in the package one gets the function.
evaluate = sys.modules[sebulba.evaluate.__module__]

EVIL = """
import pathlib
pathlib.Path(__file__).with_name("imported").touch()

def make(*args, **kwargs):
    raise AssertionError("called")
"""


@pytest.fixture
def foreign(run_of, tmp_path):
    """Returns a copy of a run directory."""
    return shutil.copytree(run_of("impala"), tmp_path / "foreign")


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """Puts the module `evil` on the path; returns the file that it makes when it is imported."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "evil.py").write_text(EVIL)
    monkeypatch.syspath_prepend(tmp_path / "path")
    yield tmp_path / "path" / "imported"
    sys.modules.pop("evil", None)


def change(run_dir, /, **changes):
    """Change keys of a run's config, such as `env__id`."""
    path = run_dir / "config.yaml"
    config = yaml.safe_load(path.read_text())
    for key, value in changes.items():
        *sections, name = key.split("__")
        section = config
        for each in sections:
            section = section[each]
        section[name] = value
    path.write_text(yaml.safe_dump(config))


NAMES = [
    {"env__id": "evil:make"},
    {"env__suite": "gymnasium", "env__id": "evil:make"},
    {"env__suite": "gymnasium", "env__id": "evil:make:Id-v0"},
    {"env__suite": "gymnasium", "env__id": "evil:Id-v0"},
    {"env__suite": "evil:make"},
    {"env__wrappers": ["evil:make"]},
    {"env__wrappers": [{"evil:make": {"n": 1}}]},
    {"env__options": {"opponent": "evil:make"}},
    {"env__options": {"deep": [{"er": "evil:make"}]}},
    {"agent__name": "evil:make"},
    {"agent__network": "evil:make"},
    {"agent__core": "evil:make"},
    {"run__episode_reducers": {"mine": "evil:make"}},
]


@pytest.mark.parametrize("changes", NAMES, ids=str)
def test_nothing_that_a_foreign_config_names_is_imported(changes, foreign, evil):
    change(foreign, **changes)
    with pytest.raises(ConfigError, match=r"config\.yaml:\d+: .*expected no module:Name, .*'evil:"):
        sebulba.load_policy(foreign, imports=False)
    assert not evil.exists()


def test_nothing_that_the_config_of_a_foreign_opponent_names_is_imported(foreign, evil, tmp_path):
    opponent = shutil.copytree(foreign, tmp_path / "opponent")
    change(opponent, agent__name="evil:make")
    change(foreign, env__id="KuhnPoker-v0", env__options={"opponent": str(opponent)})
    with pytest.raises(ConfigError, match=r"opponent/config\.yaml:\d+: .*'evil:"):
        sebulba.load_policy(foreign, imports=False)
    assert not evil.exists()


def test_with_imports_a_config_is_a_program(foreign, evil):
    change(foreign, env__suite="gymnasium", env__id="evil:make")
    with pytest.raises(Exception, match="called"):
        sebulba.load_policy(foreign)
    assert evil.exists()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("os:system", {"command": "touch {marker}"}),
        ("sebulba.storage.metrics.files:write_json", {"path": "{marker}", "value": "mine"}),
    ],
)
@pytest.mark.parametrize("imports", [True, False])
def test_a_function_of_the_library_is_called_only_with_imports(
    name, options, imports, foreign, tmp_path
):
    """Our own modules are no exception: their functions write files and start processes."""
    marker = tmp_path / "marker"
    options = {key: str(value).format(marker=marker) for key, value in options.items()}
    change(foreign, env__suite="gymnasium", env__id=name, env__options=options)
    with pytest.raises(Exception) as caught:  # what the function returned is no environment
        sebulba.load_policy(foreign, imports=imports)
    assert marker.exists() == imports
    assert ("expected no module:Name" in str(caught.value)) == (not imports)


def test_a_run_of_our_own_names_loads_without_imports(foreign):
    change(foreign, run_dir="a:b", init_from="c:d")
    with_imports, without = (sebulba.load_policy(foreign, imports=each) for each in (True, False))
    observation = np.zeros(50, np.float32)
    assert with_imports(observation)[0] == without(observation)[0]


def test_an_object_replaces_the_name_of_a_foreign_config(foreign, evil):
    change(foreign, agent__name="evil:make")
    # The settings of the run are not those of this agent.
    with pytest.raises(sebulba.ConfigError, match=r"agent\.adam_epsilon: unknown key"):
        sebulba.load_policy(foreign, agent=ToyAgent, imports=False)
    assert not evil.exists()


@pytest.mark.parametrize("command", [evaluate, export])
def test_commands_refuse_a_foreign_config_with_names(command, foreign, evil, capsys):
    change(foreign, agent__name="evil:make")
    options = command._parser().parse_args([str(foreign), "--no-imports"])
    run = evaluate.evaluate_to_exit_code if command is evaluate else export.export
    assert run(options) == EXIT_CONFIG
    assert (
        "expected no module:Name, since imports are off, got 'evil:make'" in capsys.readouterr().err
    )
    assert not evil.exists()


def test_a_module_in_the_run_directory_is_not_imported(foreign, monkeypatch):
    (foreign / "near.py").write_text(EVIL)
    change(foreign, env__suite="gymnasium", env__id="near:make")
    with pytest.raises(ConfigError, match="there is no module 'near'"):
        sebulba.load_policy(foreign)
    assert not (foreign / "imported").exists()


def test_the_curves_of_a_foreign_run_are_read_without_imports(foreign, evil):
    change(foreign, agent__name="evil:make", env__id="evil:make")
    assert read_run(foreign).rows
    assert not evil.exists()


def test_a_json_file_that_is_too_deep_is_an_error(foreign):
    for name in ("summary.json", "run.json"):
        (foreign / name).write_text("[" * 100_000)
    with pytest.raises(ConfigError, match=r"summary\.json: expected a JSON object"):
        read_run(foreign)
    change(foreign, agent__name="missing:make")
    with pytest.raises(ConfigError, match="there is no module 'missing'"):
        sebulba.load_policy(foreign)


def test_a_tag_in_a_foreign_config_is_an_error(foreign, tmp_path):
    with (foreign / "config.yaml").open("a") as file:
        file.write(f"x: !!python/object/apply:os.system ['touch {tmp_path}/marker']\n")
    with pytest.raises(ConfigError, match="tags are not supported"):
        sebulba.load_policy(foreign)
    assert not (tmp_path / "marker").exists()


def test_the_texts_of_a_foreign_config_do_not_drive_the_terminal(foreign, capsys):
    change(foreign, env__id="\x1b[2J")
    for run, command in ((evaluate.evaluate_to_exit_code, evaluate), (export.export, export)):
        assert run(command._parser().parse_args([str(foreign)])) == EXIT_CONFIG
        said = capsys.readouterr().err
        assert r"\x1b[2J" in said and "\x1b" not in said


# Checkpoints.


def checkpoint_of(run_dir):
    return max((run_dir / "checkpoints").iterdir(), key=lambda path: int(path.name))


def rewrite(checkpoint, changes):
    """Replace arrays of a checkpoint by files `name: bytes`, or by as many zeros as an int says."""
    with zipfile.ZipFile(checkpoint / ARRAYS) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(checkpoint / ARRAYS, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**members, **changes}.items():
            if isinstance(data, bytes):
                archive.writestr(name, data)
                continue
            with archive.open(name, "w", force_zip64=True) as member:
                header = {"descr": "<f4", "fortran_order": False, "shape": (data // 4,)}
                np.lib.format.write_array_header_1_0(member, header)
                for _ in range(data >> 20):
                    member.write(bytes(1 << 20))


def networks_of(checkpoint):
    leaves = json.loads((checkpoint / MANIFEST).read_text())["leaves"]
    return [f"{name}.npy" for name in leaves if name.startswith("learner.networks.")]


class Reads:
    """Counts the bytes that are decompressed."""

    def __init__(self, monkeypatch):
        self.num_bytes = 0
        original = zipfile.ZipExtFile.read

        def read(file, *arguments):
            data = original(file, *arguments)
            self.num_bytes += len(data)
            return data

        monkeypatch.setattr(zipfile.ZipExtFile, "read", read)


BOMB = 64 << 20


def test_an_array_that_expands_is_not_decompressed(foreign, monkeypatch):
    checkpoint = checkpoint_of(foreign)
    rewrite(checkpoint, {networks_of(checkpoint)[-1]: BOMB})
    assert (checkpoint / ARRAYS).stat().st_size < BOMB / 100
    reads = Reads(monkeypatch)
    with pytest.raises(CheckpointError, match=rf"is damaged: .* bytes, got {BOMB + 128:,}"):
        sebulba.load_policy(foreign, int(checkpoint.name))
    assert reads.num_bytes < 1 << 20


def test_an_array_that_the_policy_does_not_need_is_not_read(foreign, monkeypatch):
    """Not even to name a checkpoint that is whole, after another array was found damaged."""
    checkpoint = checkpoint_of(foreign)
    rewrite(checkpoint, {"extra.npy": BOMB, networks_of(checkpoint)[0]: b"no array"})
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    manifest["leaves"]["extra"] = {"shape": [BOMB // 4], "dtype": "float32", "crc32": "0"}
    del manifest["crc32"]
    (checkpoint / MANIFEST).write_text(json.dumps({**manifest, "crc32": crc32_of_json(manifest)}))
    reads = Reads(monkeypatch)
    with pytest.raises(CheckpointError, match="is damaged: "):
        sebulba.load_policy(foreign, int(checkpoint.name))
    assert reads.num_bytes < 1 << 20


def test_an_array_of_objects_is_an_error(foreign, tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "marker"), "w"))

    checkpoint = checkpoint_of(foreign)
    np.save(tmp_path / "objects.npy", np.array([Bomb()], object), allow_pickle=True)
    rewrite(checkpoint, {networks_of(checkpoint)[0]: (tmp_path / "objects.npy").read_bytes()})
    with pytest.raises(CheckpointError, match="Object arrays cannot be loaded"):
        sebulba.load_policy(foreign, int(checkpoint.name))
    assert not (tmp_path / "marker").exists()


def test_a_manifest_that_is_too_deep_is_an_error(foreign):
    checkpoint = checkpoint_of(foreign)
    (checkpoint / MANIFEST).write_text("[" * 100_000)
    options = evaluate._parser().parse_args([str(foreign), "--checkpoint", checkpoint.name])
    assert evaluate.evaluate_to_exit_code(options) == EXIT_CHECKPOINT


# Files outside of the run directory.


def test_an_export_does_not_follow_a_link_out_of_the_run_directory(foreign, tmp_path, capsys):
    home = tmp_path / "home"
    home.mkdir()
    (foreign / "export").symlink_to(home)
    assert export.export(export._parser().parse_args([str(foreign)])) == EXIT_CONFIG
    assert "is a symbolic link" in capsys.readouterr().err
    assert list(home.iterdir()) == []


def test_an_export_replaces_links_and_not_the_files_behind_them(foreign, tmp_path):
    names = list(FILES)
    (foreign / "export").mkdir()
    for name in [*names, f"{names[2]}.tmp"]:
        (tmp_path / name).write_text("mine")
        (foreign / "export" / name).symlink_to(tmp_path / name)
    options = export._parser().parse_args([str(foreign), "--platforms", "cpu"])
    assert export.export(options) == EXIT_DONE
    assert {(tmp_path / name).read_text() for name in names} == {"mine"}
    assert (tmp_path / f"{names[2]}.tmp").read_text() == "mine"
    assert sebulba.load_policy(foreign)(np.zeros(50, np.float32))[0].shape == ()
