"""What a certificate holds, what it says of its row, and that a row is trained again."""

import json
import platform
import shutil
import tempfile

import pytest

from benchmarks import certificates, records, repetitions, results
from benchmarks.certificates import (
    CERTIFICATE,
    SameCurve,
    commit_of,
    keep_certificate,
    read_certificate,
    same_curve,
)
from sebulba.process import EXIT_DONE, EXIT_OTHER_RESULT, EXIT_ROUNDING
from sebulba.storage.checksums import checksums_of
from sebulba.storage.fingerprint import describe_cpu
from tests.subprocesses import environment, run_python

RECORDS = records.FOLDER / "results" / "records"
CERTIFIED = [path for path in sorted(RECORDS.iterdir()) if (path / CERTIFICATE).is_dir()]
MAX_BYTES = 150_000


@pytest.fixture
def row(run_of, tmp_path, monkeypatch):
    """Returns the folder of pages in which a short run is the only row, `impala`."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(records, "commit_of", lambda process: "abc1234")
    monkeypatch.setattr(certificates, "commit_of", lambda process: "abc1234")
    shutil.copytree(run_of("impala"), tmp_path / "run")
    process = json.loads((tmp_path / "run" / "run.json").read_text())
    process |= {"argv": ["train.py", "impala"], "code": {"commit": "abc1234"}}
    (tmp_path / "run" / "run.json").write_text(json.dumps(process))
    records.add(tmp_path / "run", tmp_path)
    return tmp_path


def repeat(row, monkeypatch, *, code=EXIT_DONE, change=lambda run: None):
    """Repeats the row `impala` with a run that is copied and changed."""

    def verify(certificate, *, cycles, into):
        assert certificate == row / "results" / "records" / "impala" / CERTIFICATE
        shutil.copytree(row / "run", into)
        change(into)
        return code

    monkeypatch.setattr(repetitions, "verify", verify)
    return repetitions.repeat("impala", row, keep=True)


def edit(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def test_adding_a_result_keeps_a_certificate_of_its_whole_run(row):
    path = row / "results" / "records" / "impala" / CERTIFICATE
    kept = checksums_of(path)
    assert kept == [each for each in checksums_of(row / "run") if each in kept] != []
    assert kept[-1] == checksums_of(row / "run")[-1]
    assert "run_dir: null" in (path / "config.yaml").read_text()
    assert not json.loads((path / "run.json").read_text()).keys() & {"argv", "sources"}
    assert "| `abc1234` | whole run |" in results.make_page(row)


def test_the_seeds_of_a_row_have_the_same_settings(row):
    config = row / "run" / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("seed: 0", "seed: 1").replace("discount: 0.9", "discount: 0.5"))
    with pytest.raises(SystemExit, match=r"settings of .*seed-0.json, got other agent.discount"):
        records.add(row / "run", row)
    config.write_text(text.replace("seed: 0", "seed: 1"))
    records.add(row / "run", row)
    assert "| 0, 1 |" in results.make_page(row)


def test_a_resumed_run_gets_no_certificate_and_has_no_new_settings(row):
    path = row / "results" / "records" / "impala"
    shutil.rmtree(path)
    start = {"argv": ["train.py", "run/config.yaml", "--run-dir", "run", "--resume", "latest"]}
    edit(row / "run" / "run.json", lambda value: value.update(resumed=[start]))
    records.add(row / "run", row)
    assert not (path / CERTIFICATE).exists()
    start["argv"] += ["--run.total-env-steps", "1000000"]
    edit(row / "run" / "run.json", lambda value: value.update(resumed=[start]))
    with pytest.raises(SystemExit, match=r"resumed with other settings: --run.total-env-steps"):
        records.add(row / "run", row)


def test_what_a_record_lacks_is_said(row):
    edit(row / "run" / "run.json", lambda value: value.update(argv=["train.py", "--seed", "0"]))
    with pytest.raises(SystemExit, match=r"expected --name, since the run was started without a"):
        records.add(row / "run", row)
    records.add(row / "run", row, name="impala")
    (row / "run" / "metrics.jsonl").write_text('{"env_steps": 8, "episode_return_mean": null}\n')
    with pytest.raises(SystemExit, match=r"expected mean returns, got a run with too few episodes"):
        records.add(row / "run", row, name="impala")


def test_rows_are_repeated_until_a_signal(row, monkeypatch):
    repeated = []
    codes = iter([EXIT_OTHER_RESULT, EXIT_DONE, 130, EXIT_DONE])
    monkeypatch.setattr(
        repetitions, "repeat", lambda *args, **kw: repeated.append(args) or next(codes)
    )
    with pytest.raises(SystemExit, match=r"expected a row"):
        repetitions.repeat_all(["impala", "impla"], row)
    assert not repeated
    assert repetitions.repeat_all(["impala", "impala"], row) == EXIT_OTHER_RESULT
    assert repetitions.repeat_all(["impala", "impala"], row) == 130
    assert len(repeated) == 3


def test_a_long_run_keeps_its_first_rows_and_its_last(run_of, tmp_path):
    shutil.copytree(run_of("impala"), tmp_path / "run")
    (first, *_) = (tmp_path / "run" / "checksums.jsonl").read_text().splitlines()
    cycles = [0, 1, 100, 200, 400]
    lines = [json.dumps(json.loads(first) | {"learner_cycles": each}) + "\n" for each in cycles]
    (tmp_path / "run" / "checksums.jsonl").write_text("".join(lines))
    keep_certificate(tmp_path / "run", tmp_path / "kept")
    assert [each.num_cycles for each in checksums_of(tmp_path / "kept")] == [0, 1, 100, 400]


def test_a_certificate_of_other_code_says_what_it_does_not_say(row, monkeypatch, capsys):
    record = row / "results" / "records" / "impala" / "seed-0.json"
    edit(record, lambda value: value.update(commit="0000000"))
    cycles = checksums_of(row / "run")[-1].num_cycles
    assert f"| `0000000` | first {cycles:,} learner cycles, of `abc1234` |" in results.make_page(
        row
    )
    repeat(row, monkeypatch)
    first = capsys.readouterr().out.splitlines()[0]
    assert "is of commit 0000000" in first and "of abc1234: it says what the later code" in first


def test_a_row_is_repeated_and_the_verdict_kept(row, monkeypatch, capsys):
    assert repeat(row, monkeypatch) == EXIT_DONE
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3].startswith("the result's curve: the same in ")
    assert lines[-2].startswith("the result is the same: env_steps, updates, episodes, ")
    assert repeat(row, monkeypatch, code=EXIT_ROUNDING) == EXIT_ROUNDING
    found = read_certificate(row / "results" / "records" / "impala" / CERTIFICATE)
    (kept,) = found.repetitions  # the later one of the same machine
    assert (kept["verdict"], kept["commit"]) == ("consistent with rounding", "abc1234")
    assert kept["cpu"] in results.make_page(row)

    def on_another_cpu(run):
        edit(run / "run.json", lambda process: process["cpu"].update(features="sse2"))

    repeat(row, monkeypatch, change=on_another_cpu)
    found = read_certificate(row / "results" / "records" / "impala" / CERTIFICATE)
    first, second = (each["cpu"] for each in found.repetitions)
    assert first == kept["cpu"] and second.endswith(", other CPU features")


def test_a_digit_of_a_result_that_was_changed_is_found(row, monkeypatch, capsys):
    """The bits are those of the certificate, but not the numbers those of the record."""
    record = row / "results" / "records" / "impala" / "seed-0.json"
    edit(record, lambda value: value["summary"].update(final_episode_return_mean=99.5))
    assert repeat(row, monkeypatch) == EXIT_OTHER_RESULT
    assert "another final_episode_return_mean: there 99.5, here " in capsys.readouterr().out
    edit(record, lambda value: value["curve"][0].__setitem__(2, 99.5))
    repeat(row, monkeypatch)
    assert "the result's curve: other from its first point on" in capsys.readouterr().out
    edit(record, lambda value: value["config"].update({"agent.discount": 0.5}))
    with pytest.raises(SystemExit, match=r"settings of the result, got other .*discount"):
        repeat(row, monkeypatch)


def test_the_beginning_of_a_row_is_certified_and_other_settings_are_refused(row):
    path = row / "results" / "records" / "impala" / CERTIFICATE
    shutil.rmtree(path)
    assert records.certify(row / "run", row) == path
    assert read_certificate(path) is not None
    record = row / "results" / "records" / "impala" / "seed-0.json"
    edit(record, lambda value: value["config"].update({"agent.discount": 0.5}))
    with pytest.raises(SystemExit, match=r"expected the settings of impala, got other .*discount"):
        records.certify(row / "run", row)
    (row / "run" / "checksums.jsonl").unlink()
    edit(record, lambda value: value["config"].pop("agent.discount"))
    with pytest.raises(SystemExit, match="expected a run with checksums and an exact policy lag"):
        records.certify(row / "run", row)


def test_rows_without_a_certificate_say_why(row):
    shutil.rmtree(row / "results" / "records" / "impala" / CERTIFICATE)
    with pytest.raises(SystemExit, match=r"impala: none$"):
        repetitions.repeat("impala", row)
    record = row / "results" / "records" / "impala" / "seed-0.json"
    edit(record, lambda value: value["config"].update({"learner.policy_lag": None}))
    with pytest.raises(SystemExit, match="impala: none: free-running"):
        repetitions.repeat("impala", row)
    assert "| none: free-running |" in results.make_page(row)
    with pytest.raises(SystemExit, match=r"expected a row of docs/results.md"):
        repetitions.repeat("impla", row)


def test_curves_are_compared_up_to_the_first_other_point():
    record = {"curve": [[100, 1.0, 0.25], [200, 2.0, 0.5], [300, 3.0, 0.75]]}

    def rows(*returns):
        return [
            {"env_steps": 100 * i, "episode_return_mean": value}
            for i, value in enumerate(returns, start=1)
        ]

    assert same_curve(record, rows(0.251, 0.5)) == SameCurve(
        num_points=2, env_steps=200, num_compared=2
    )
    assert same_curve(record, rows(0.25, 0.6, 0.75)) == SameCurve(
        num_points=1, env_steps=100, num_compared=3
    )
    assert same_curve(record, rows(None)) == SameCurve(num_points=0, env_steps=0, num_compared=0)


def test_a_run_of_code_that_no_commit_holds_is_refused(monkeypatch):
    code = {"commit": "abc1234567", "changed": ["docs/a.md"], "sources": {"sebulba": "0"}}
    monkeypatch.setattr(certificates, "_sources_of", lambda commit: {"sebulba": "0"})
    assert commit_of({"code": code}) == "abc1234"
    with pytest.raises(SystemExit, match="expected a run of a commit of this repository"):
        commit_of({"code": {**code, "commit": None}})
    with pytest.raises(SystemExit, match=r"got changes of sebulba/train\.py, configs/new\.yaml"):
        changed = ["docs/a.md", "sebulba/train.py", "configs/new.yaml"]
        commit_of({"code": {**code, "changed": changed}})
    with pytest.raises(SystemExit, match="add the untracked files"):
        commit_of({"code": {**code, "sources": {"sebulba": "1"}}})


def test_each_certificate_is_small_and_its_commit_repeats_it():
    assert CERTIFIED
    for path in CERTIFIED:
        files = [each for each in (path / CERTIFICATE).iterdir() if each.is_file()]
        assert sum(each.stat().st_size for each in files) < MAX_BYTES, path
        found = read_certificate(path / CERTIFICATE)
        assert found.process["code"]["changed"] == [], path
        kept = {each["verdict"] for each in found.repetitions if each["commit"] == found.commit}
        assert kept <= {"the same bits"}, path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo_bandit", "ppo_catch_pixels", "ppo_halfcheetah"])
def test_the_code_computes_the_bits_of_a_row_where_the_machine_is_the_same(name):
    process = read_certificate(RECORDS / name / CERTIFICATE).process
    same = {"cpu": describe_cpu(), "python": platform.python_version()}
    if any(process[key] != value for key, value in same.items()):
        pytest.skip("the certificate was made on another machine")
    again = run_python(
        "-m", "benchmarks.results", "--verify", name, "--cycles", "5", variables=environment()
    )
    assert again.returncode in (EXIT_DONE, EXIT_ROUNDING), (
        f"bits have changed: say so in the changelog\n{again.stdout}{again.stderr}"
    )
