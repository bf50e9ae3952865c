"""What two runs were made of: settings, code, versions, machine and flags."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from sebulba.config.agents import DEFAULT_AGENT, agent_config_class
from sebulba.config.file import read_config_file
from sebulba.config.schema import Config, flat_config
from sebulba.devices.variables import decides_bits
from sebulba.errors import ConfigError, one_line
from sebulba.storage.names import CONFIG, MAPPED_SEEDS, RUN
from sebulba.storage.run_files import Run, describe_runs_in, read_json

Kind = Literal["settings", "code", "versions", "machine", "flags"]
KINDS: tuple[Kind, ...] = ("settings", "code", "versions", "machine", "flags")
ABSENT = "none"
"""Stands for what only the other run has."""

_IGNORED_SETTINGS = ("run_dir", "resume")
_MAX_FEATURES = 8
# Of JAX's settings: platforms are compared as devices.
_IGNORED_JAX = ("jax_platforms",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """Something that two runs do not have in common."""

    kind: Kind
    name: str
    first: Any
    second: Any

    def __str__(self) -> str:
        return f"{self.name}: {self.first} and {self.second}"


def read_start(path: pathlib.Path) -> Run:
    """Read how a run began, `config.yaml` and `run.json`; the other files may be damaged.

    Raises:
        ConfigError: it has no config, or one of the two is invalid.
    """
    if not (path / CONFIG).is_file():
        raise ConfigError(
            f"{path}: expected a run directory with a {CONFIG}, got none{describe_runs_in(path)}"
        )
    config = {key: each.value for key, each in read_config_file(str(path / CONFIG)).items()}
    process = read_json(path / RUN) or {}
    return Run(path=path, config=config, rows=[], summary=None, process=process)


def differences(first: Run, second: Run) -> list[Difference]:
    """Return what differs between two runs as they began, in the order of `KINDS`.

    What one of them has not recorded, as earlier versions did not, is not compared.
    """
    return [
        *_settings(first.config, second.config),
        *differences_of_starts(first.process, second.process),
    ]


def differences_of_starts(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    """Return what differs between two starts besides the config: contents of `run.json`."""
    seeds = [{"seeds of its program": each.get(MAPPED_SEEDS)} for each in (first, second)]
    return [
        *_each("settings", *seeds),
        *_code(first.get("code"), second.get("code")),
        *_each("versions", _versions(first), _versions(second)),
        *_machine(first, second),
        *_flags(first, second),
    ]


def describe_change_of_start(process: Mapping[str, Any]) -> str | None:
    """Return a warning that a resume differs from the start before it in what decides bits.

    None: it does not, or the run was not resumed.

    Args:
        process: the run's `run.json`.
    """
    starts = starts_of(process)
    found = differences_of_starts(*starts[-2:]) if len(starts) > 1 else []
    if not found:
        return None
    changes = ", ".join(f"{each.name} (before {each.first}, now {each.second})" for each in found)
    return f"warning: the bits of this run may change from here on: {changes}"


def starts_of(process: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the first start of a run and all of its resumes, from the contents of `run.json`."""
    resumed = process.get("resumed")
    return [process, *map(_mapping, resumed if isinstance(resumed, list) else [])]


def resumes_before(process: Mapping[str, Any], cycle: int) -> list[Mapping[str, Any]]:
    """Return the resumes that led to the batch of a learner cycle, in the order of their cycles.

    Args:
        process: the run's `run.json`.
        cycle: a learner cycle, from 0.
    """
    return [each for each in resumes_of(process) if each["at"] <= cycle]


def next_resume(process: Mapping[str, Any], cycle: int) -> int | None:
    """Return the first learner cycle, of this one and later ones, that a run was resumed at.

    Args:
        process: the run's `run.json`.
        cycle: a learner cycle, from 0.

    Returns:
        The cycle; None: it was not resumed there.
    """
    return next((each["at"] for each in resumes_of(process) if each["at"] >= cycle), None)


def resumes_of(process: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the resumes whose rows a run has, in the order of their cycles.

    A resume from an earlier checkpoint replaces those after it.
    """
    resumes: list[Mapping[str, Any]] = []
    for each in starts_of(process)[1:]:
        if isinstance(at := each.get("at"), int):
            resumes = [*(other for other in resumes if other["at"] < at), each]
    return resumes


def mapped_seeds(process: Mapping[str, Any]) -> list[int] | None:
    """Return the seeds that shared one program at the first start; None: they are not known.

    Args:
        process: the run's `run.json`.
    """
    first, *resumes = starts_of(process)
    # Earlier versions recorded those of the last start only.
    is_of_first = all(MAPPED_SEEDS in each for each in resumes if "at" in each)
    seeds = first.get(MAPPED_SEEDS, [])
    return seeds if isinstance(seeds, list) and (is_of_first or not seeds) else None


def describe_start(run: Run) -> str:
    """Return in one line where and with what a run has computed."""
    process = run.process
    cpu = _mapping(process.get("cpu")).get("model")
    threads = process.get("threads")
    parts = [
        str(cpu) if cpu else "a CPU that is not recorded",
        f"{threads} {'thread' if threads == 1 else 'threads'}" if threads else "",
        f"jax {_versions(process).get('jax', 'unknown')}",
        f"commit {str(commit)[:12]}"
        if (commit := _mapping(process.get("code")).get("commit"))
        else "",
    ]
    return one_line(", ".join(filter(None, parts)))


def _settings(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Difference]:
    # A key that a run of another version has not written had its default.
    complete = [{**_defaults(each), **each} for each in (first, second)]
    for key in {**first, **second}:
        ours, theirs = (each.get(key, ABSENT) for each in complete)
        if ours != theirs and key not in _IGNORED_SETTINGS and _plain(ours) != _plain(theirs):
            yield Difference(kind="settings", name=key, first=ours, second=theirs)


def _defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default of every key, without those of an agent that is not installed here."""
    defaults = flat_config(Config())
    with contextlib.suppress(ConfigError):
        agent = agent_config_class(str(config.get("agent.name", DEFAULT_AGENT)))
        for field in dataclasses.fields(agent):
            if field.default_factory is not dataclasses.MISSING:
                defaults[f"agent.{field.name}"] = field.default_factory()
            elif field.default is not dataclasses.MISSING:
                defaults[f"agent.{field.name}"] = field.default
    return defaults


def _code(first: Any, second: Any) -> Iterator[Difference]:
    first, second = _mapping(first), _mapping(second)
    if not first or not second:
        return
    for part in ("sources", "files", "modules"):
        ours, theirs = _mapping(first.get(part)), _mapping(second.get(part))
        # One of two processes may have imported more of the user's modules than it used.
        both = [name for name in ours if name in theirs]
        for name in both if part == "modules" else {**ours, **theirs}:
            if ours.get(name) != theirs.get(name):
                yield Difference(
                    kind="code",
                    name=name,
                    first=f"{ours.get(name, ABSENT)} ({_describe_commit(first)})",
                    second=f"{theirs.get(name, ABSENT)} ({_describe_commit(second)})",
                )


def _describe_commit(code: Mapping[str, Any]) -> str:
    commit, changed = code.get("commit"), code.get("changed")
    if not commit:
        return "no commit"
    files = f", changes in {len(changed)} files" if isinstance(changed, list) and changed else ""
    return f"commit {str(commit)[:12]}{files}"


def _machine(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Difference]:
    ours, theirs = _mapping(first.get("cpu")), _mapping(second.get("cpu"))
    yield from _each("machine", {"CPU": ours.get("model")}, {"CPU": theirs.get("model")})
    features = [set(str(cpu.get("features", "")).split()) for cpu in (ours, theirs)]
    if all(features) and features[0] != features[1]:
        alone = [features[0] - features[1], features[1] - features[0]]
        yield Difference(
            kind="machine",
            name="CPU features",
            first=_only(alone[0]),
            second=_only(alone[1]),
        )
    for name, key in (
        ("threads", "threads"),
        ("threads of LAPACK", "lapack_threads"),
        ("devices", "devices"),
    ):
        yield from _each("machine", {name: first.get(key)}, {name: second.get(key)})


def _flags(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Difference]:
    words = [str(each.get("xla_flags") or "").split() for each in (first, second)]
    if sorted(words[0]) != sorted(words[1]) and "xla_flags" in first and "xla_flags" in second:
        alone = [" ".join(w for w in words[i] if w not in words[1 - i]) for i in (0, 1)]
        yield Difference(
            kind="flags",
            name="XLA_FLAGS",
            first=alone[0] or ABSENT,
            second=alone[1] or ABSENT,
        )
    if "environment" in first and "environment" in second:
        # A variable of a setting of JAX is compared as that setting.
        as_settings = {
            name.upper() for each in (first, second) for name in _mapping(each.get("jax"))
        }
        variables = [
            {
                name: text
                for name, text in _mapping(each["environment"]).items()
                if decides_bits(name) and name not in as_settings
            }
            for each in (first, second)
        ]
        yield from _each("flags", *variables, both=False)
    settings = [
        {name: v for name, v in _mapping(each.get("jax")).items() if name not in _IGNORED_JAX}
        for each in (first, second)
    ]
    yield from _each("flags", *settings)
    yield from _each("flags", *({"kernels": each.get("kernels")} for each in (first, second)))


def _each(
    kind: Kind,
    first: Mapping[str, Any],
    second: Mapping[str, Any],
    *,
    both: bool = True,
) -> Iterator[Difference]:
    """Yield what differs of two mappings; with `both`, only of what both have."""
    for name in {**first, **second}:
        ours, theirs = first.get(name), second.get(name)
        if ours == theirs or (both and (ours is None or theirs is None)):
            continue
        yield Difference(
            kind=kind,
            name=name,
            first=ABSENT if ours is None else ours,
            second=ABSENT if theirs is None else theirs,
        )


def _versions(process: Mapping[str, Any]) -> dict[str, Any]:
    python = {"Python": process["python"]} if "python" in process else {}
    return python | _mapping(process.get("versions"))


def _only(words: set[str]) -> str:
    names = sorted(words)
    more = f" and {len(names) - _MAX_FEATURES} more" if len(names) > _MAX_FEATURES else ""
    return f"also {' '.join(names[:_MAX_FEATURES])}{more}" if names else "no others"


def _plain(value: Any) -> Any:
    """Return a setting as a file has it: tuples are lists there, and schedules mappings."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return list(map(_plain, value)) if isinstance(value, list | tuple) else value


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
