import json
import math

import pytest

from sebulba.storage.metrics.files import write_json, write_text
from sebulba.storage.metrics.summary import SUMMARY_KEYS, write_summary


def test_write_json_is_strict_at_any_depth(tmp_path):
    path = tmp_path / "run.json"
    write_json(path, {"a": [math.nan, (1.0, -math.inf)], "b": {"c": math.inf}, "d": None, "é": 1})
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == {
        "a": [None, [1.0, None]],
        "b": {"c": None},
        "d": None,
        "é": 1,
    }
    assert path.read_text().endswith("}\n")


def test_write_text_on_a_full_disk_keeps_the_old_file_and_no_other(tmp_path, full_disk):
    path = tmp_path / "file.txt"
    write_text(path, "old")
    with full_disk(5), pytest.raises(OSError):
        write_text(path, "much too long")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_summary_replaces_an_earlier_one(tmp_path):
    path = tmp_path / "summary.json"
    summary = dict.fromkeys(SUMMARY_KEYS) | {"status": "running"}
    write_summary(path, summary)
    write_summary(path, summary | {"status": "done", "dropped_metrics_rows": {}})
    assert json.loads(path.read_text())["status"] == "done"
    assert list(tmp_path.iterdir()) == [path]


def test_summary_without_a_required_key_is_refused(tmp_path):
    summary = dict.fromkeys(SUMMARY_KEYS)
    del summary["ledger"], summary["updates"]
    with pytest.raises(ValueError, match="with the keys updates, ledger too"):
        write_summary(tmp_path / "summary.json", summary)
    assert list(tmp_path.iterdir()) == []
