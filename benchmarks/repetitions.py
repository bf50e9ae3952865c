"""Train the certificates of rows of the results page again, and say what is the same."""

import pathlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.certificates import (
    CERTIFICATE,
    Certificate,
    commit_of,
    describe_curve,
    is_whole,
    read_certificate,
    record_repetition,
    same_curve,
)
from benchmarks.records import FOLDER, other_settings, record_of, without_certificate
from sebulba.process import EXIT_DONE, EXIT_OTHER_RESULT, EXIT_ROUNDING, EXIT_SIGNAL_BASE
from sebulba.storage.checksums import checksums_of
from sebulba.storage.run_files import Run, read_run
from sebulba.verify import verify

_REPEATED = ("env_steps", "updates", "episodes", "final_episode_return_mean")
"""Numbers of a result that its repetition has, too."""
_VERDICTS = {
    EXIT_DONE: "the same bits",
    EXIT_ROUNDING: "consistent with rounding",
    EXIT_OTHER_RESULT: "another result",
}


def repeat_all(
    names: Sequence[str],
    folder: pathlib.Path = FOLDER,
    *,
    cycles: int | None = None,
    keep: bool = False,
) -> int:
    """Train the certificates of rows again, until a signal, and return the greatest exit code.

    Args:
        names: of the rows.
        folder: the folder `docs`.
        cycles: the most learner cycles to repeat; None: all of a certificate.
        keep: whether to add the verdicts to the certificates.

    Raises:
        SystemExit: a row has no certificate, or a verdict would be kept of code without a commit.
    """
    from sebulba.storage.fingerprint import describe_code  # It imports jax.

    for name in names:
        _certificate_of(folder / "results" / "records" / name)
    if keep:
        commit_of({"code": describe_code()})
    greatest = EXIT_DONE
    for name in names:
        code = repeat(name, folder, cycles=cycles, keep=keep)
        greatest = max(greatest, code)
        if code > EXIT_SIGNAL_BASE:
            break
    return greatest


def _certificate_of(row: pathlib.Path) -> Certificate:
    certificate = read_certificate(row / CERTIFICATE)
    if certificate is None:
        raise SystemExit(f"{row.name}: {without_certificate(row)}")
    return certificate


def repeat(
    name: str, folder: pathlib.Path = FOLDER, *, cycles: int | None = None, keep: bool = False
) -> int:
    """Train a row's certificate again, print what is the same, and return the exit code.

    Args:
        name: of the row.
        folder: the folder `docs`.
        cycles: the most learner cycles to repeat; None: all of the certificate.
        keep: whether to add the verdict to the certificate.

    Raises:
        SystemExit: the row has no certificate.
    """
    row = folder / "results" / "records" / name
    certificate = _certificate_of(row)
    record = record_of(row, certificate.seed)
    print(f"{name}: {_describe_relation(record, certificate)}", flush=True)
    if other := other_settings(record, certificate.config):
        raise SystemExit(f"{name}: expected the settings of the result, got other {other}")
    again = pathlib.Path(tempfile.mkdtemp(prefix="sebulba-row-")) / "run"
    code = verify(row / CERTIFICATE, cycles=cycles, into=again)
    if code in _VERDICTS:
        run, last = read_run(again), checksums_of(again)[-1]
        if keep:
            record_repetition(
                row / CERTIFICATE,
                process=run.process,
                cycles=last.num_cycles,
                verdict=_VERDICTS[code],
            )
        print(f"the result's curve: {describe_curve(same_curve(record, run.rows))}")
        if last.env_steps >= record["summary"]["env_steps"] and not _is_result(record, run):
            code = max(code, EXIT_OTHER_RESULT)
    if code == EXIT_DONE:
        shutil.rmtree(again.parent)
        print("the repetition is removed")
    return code


def _is_result(record: Mapping[str, Any], run: Run) -> bool:
    """Print whether a run has the numbers of a result, and return it."""
    summary = run.summary or {}
    other = [key for key in _REPEATED if summary.get(key) != record["summary"][key]]
    for key in other:
        print(f"another {key}: there {record['summary'][key]}, here {summary.get(key)}")
    if not other:
        print(f"the result is the same: {', '.join(_REPEATED)}")
    return not other


def _describe_relation(record: Mapping[str, Any], certificate: Certificate) -> str:
    """Return which part of a result a certificate is of."""
    seed, cycles = certificate.seed, f"{certificate.last.num_cycles:,} learner cycles"
    if is_whole(record, certificate):
        return f"the whole run of seed {seed}, {cycles}, of commit {certificate.commit}"
    if certificate.commit == record["commit"]:
        return f"the first {cycles} of seed {seed}, of commit {certificate.commit}"
    return (
        f"the result of seed {seed} is of commit {record['commit']}, and its certificate, of the"
        f" first {cycles}, of {certificate.commit}: it says what the later code computes"
    )
