import json
import math

import pytest

from sebulba.storage.metrics.files import write_json, write_text


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
