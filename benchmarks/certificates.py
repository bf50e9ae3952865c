"""Certificates: what the first learner cycles of a row of the results page compute.

A certificate is a run directory without checkpoints, `docs/results/records/ROW/certificate`: the
config, the machine, versions and commit, checksums, and the mean returns. `sebulba.verify` trains
it again anywhere. It may be of later code than the result, and end earlier, so `same_curve` says
how much of the result's curve it has.
"""

import dataclasses
import io
import json
import pathlib
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from sebulba.comparison.starts import read_start
from sebulba.devices.variables import decides_bits
from sebulba.devices.xla_flags import VARIABLE
from sebulba.storage.checksums import ChecksumRow, checksums_of
from sebulba.storage.metrics.files import to_json, write_json, write_text
from sebulba.storage.names import CHECKSUMS, CONFIG, METRICS, RUN
from sebulba.storage.run_files import read_json

CERTIFICATE = "certificate"
REPETITIONS = "repetitions.json"
"""In a certificate: on which machines it was repeated, and with which verdict."""
_ROOT = pathlib.Path(__file__).parents[1]
_COLUMNS = ("env_steps", "updates", "episodes", "episode_return_mean")
_PLACES = ("argv", "sources")  # of one machine
_CODE = ("sebulba/", "agents/", "configs/")
_VECTORS = {"avx512f": "AVX-512", "avx2": "AVX2", "asimd": "NEON"}  # the widest first
_MAX_CYCLES = 100  # beyond them a certificate has its last row only, to stay small


def commit_of(process: Mapping[str, Any]) -> str:
    """Return the commit whose code trained a run.

    Args:
        process: the run's `run.json`.

    Raises:
        SystemExit: no commit holds the code.
    """
    code = process.get("code") or {}
    commit, changed = code.get("commit"), code.get("changed") or []
    if commit is None:
        raise SystemExit("expected a run of a commit of this repository, got one without a commit")
    if changes := [name for name in changed if name.startswith(_CODE)]:
        raise SystemExit(
            f"expected code that a commit holds, got changes of {', '.join(changes)} since"
            f" {commit}; commit them and train again"
        )
    if _sources_of(commit) != code["sources"]:
        raise SystemExit(
            f"expected code that a commit holds, got other sources than those of {commit}; add the"
            " untracked files, commit and train again"
        )
    return str(commit)[:7]


def _sources_of(commit: str) -> dict[str, str]:
    """Return the checksums of a commit's packages, as runs record them."""
    from sebulba.storage.fingerprint import crc32_of_package  # It imports jax.

    packages = {"sebulba": "sebulba", "sebulba_agents": "agents/sebulba_agents"}
    command = ["git", "-C", str(_ROOT), "archive", commit, *packages.values()]
    archive = subprocess.run(command, check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory() as directory, tarfile.open(fileobj=io.BytesIO(archive)) as t:
        t.extractall(directory, filter="data")
        return {
            name: crc32_of_package(pathlib.Path(directory) / path)
            for name, path in packages.items()
        }


def keep_start(run_dir: pathlib.Path, target: pathlib.Path) -> None:
    """Write what repeats a run, without paths of one machine; checksums only if the run has them.

    Args:
        run_dir: of the run.
        target: a directory.
    """
    target.mkdir(parents=True, exist_ok=True)
    config = yaml.safe_load((run_dir / CONFIG).read_text())
    config["run_dir"] = None
    (target / CONFIG).write_text(yaml.safe_dump(config, sort_keys=False))
    if (run_dir / CHECKSUMS).is_file():
        write_text(target / CHECKSUMS, (run_dir / CHECKSUMS).read_text())
        write_json(target / RUN, _without_places(read_json(run_dir / RUN) or {}))


def _without_places(process: dict[str, Any]) -> dict[str, Any]:
    """Return the contents of `run.json` without paths of one machine."""
    kept = {key: value for key, value in process.items() if key not in _PLACES}
    names = [name for name in process["environment"] if decides_bits(name) or name == VARIABLE]
    return kept | {"environment": {name: process["environment"][name] for name in names}}


def keep_certificate(run_dir: pathlib.Path, target: pathlib.Path) -> None:
    """Write a run's certificate: rows of checksums up to cycle 100 and the last, and returns.

    Args:
        run_dir: of a run with checksums.
        target: the directory of the certificate.
    """
    keep_start(run_dir, target)
    lines = (target / CHECKSUMS).read_text().splitlines(keepends=True)
    kept = [line for line in lines[:-1] if json.loads(line)["learner_cycles"] <= _MAX_CYCLES]
    write_text(target / CHECKSUMS, "".join([*kept, lines[-1]]))
    rows = [
        {name: row[name] for name in _COLUMNS}
        for row in map(json.loads, (run_dir / METRICS).read_text().splitlines())
        if row.get("episode_return_mean") is not None
    ]
    write_text(target / METRICS, "".join(to_json(row) + "\n" for row in rows))
    (target / REPETITIONS).unlink(missing_ok=True)  # of an earlier certificate


@dataclasses.dataclass(frozen=True, kw_only=True)
class SameCurve:
    """How much of a result's learning curve a run has."""

    num_points: int  # with the same mean return, before the first other one
    env_steps: int  # of the last of them; 0: there is none
    num_compared: int  # points of the result within the length of the run

    @property
    def is_whole(self) -> bool:
        """Whether all points within the run's length are the same."""
        return self.num_points == self.num_compared


def same_curve(record: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> SameCurve:
    """Return how far a run's mean returns are those of a result, to its two decimal places.

    Args:
        record: of the result.
        rows: of the run's metrics.
    """
    returns = {
        row["env_steps"]: round(row["episode_return_mean"], 2)
        for row in rows
        if row.get("episode_return_mean") is not None
    }
    end = max(returns, default=0)
    points = [(steps, value) for steps, _, value in record["curve"] if steps <= end]
    num_points = 0
    for steps, value in points:
        if returns.get(steps) != value:
            break
        num_points += 1
    return SameCurve(
        num_points=num_points,
        env_steps=int(points[num_points - 1][0]) if num_points else 0,
        num_compared=len(points),
    )


def describe_curve(curve: SameCurve) -> str:
    """Return in words how far two curves are the same."""
    if not curve.num_compared:
        return "no return in so few cycles"
    if curve.is_whole:
        points = "its only point" if curve.num_points == 1 else f"all {curve.num_points} points"
        return f"the same in {points}, up to {curve.env_steps:,} env steps"
    if not curve.num_points:
        return f"other from its first point on, of {curve.num_compared}"
    return (
        f"the same up to {curve.env_steps:,} env steps, {curve.num_points} of"
        f" {curve.num_compared} points, then other"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Certificate:
    """A certificate that was read."""

    config: Mapping[str, Any]  # keys are dotted
    process: Mapping[str, Any]  # run.json
    last: ChecksumRow
    metrics: Sequence[Mapping[str, Any]]
    repetitions: Sequence[Mapping[str, Any]]

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.config["seed"])

    @property
    def commit(self) -> str:
        """The commit that trained it."""
        return str(self.process["code"]["commit"])[:7]


def read_certificate(path: pathlib.Path) -> Certificate | None:
    """Read a certificate; None: there is none."""
    if not path.is_dir():
        return None
    repetitions: Any = read_json(path / REPETITIONS)
    return Certificate(
        config=read_start(path).config,
        process=read_json(path / RUN) or {},
        last=checksums_of(path)[-1],
        metrics=[json.loads(line) for line in (path / METRICS).read_text().splitlines()],
        repetitions=repetitions["repetitions"] if repetitions else [],
    )


def is_whole(record: Mapping[str, Any], certificate: Certificate) -> bool:
    """Return whether a certificate covers the whole run of a result."""
    steps = certificate.last.env_steps
    return certificate.commit == record["commit"] and steps == record["summary"]["env_steps"]


def describe_cpu(process: Mapping[str, Any]) -> str:
    """Return the CPU of a run, its widest vector instructions and XLA's threads."""
    words = str(process["cpu"]["features"]).split()
    vectors = next((text for word, text in _VECTORS.items() if word in words), "")
    count = process["threads"]
    threads = f"{count} {'thread' if count == 1 else 'threads'}"
    return ", ".join(filter(None, (process["cpu"]["model"], vectors, threads)))


def record_repetition(
    certificate: pathlib.Path, *, process: Mapping[str, Any], cycles: int, verdict: str
) -> None:
    """Add a verdict on a certificate, in the place of an earlier one from a machine of its kind.

    Args:
        certificate: its directory.
        process: `run.json` of the repetition.
        cycles: learner cycles that were repeated.
        verdict: in words.
    """
    cpu = describe_cpu(process)
    found = read_certificate(certificate)
    assert found is not None
    if process["cpu"] != found.process["cpu"]:
        cpu += ", other CPU features"  # Several kinds of CPU have the same name.
    others = [dict(each) for each in found.repetitions if each["cpu"] != cpu]
    mine = {"cpu": cpu, "commit": commit_of(process), "cycles": cycles, "verdict": verdict}
    write_json(certificate / REPETITIONS, {"repetitions": [*others, mine]})
