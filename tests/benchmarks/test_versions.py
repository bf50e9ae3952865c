"""The table of package versions in `docs/versions.md`."""

import re
import tomllib

from benchmarks import versions


def test_every_package_at_run_time_has_a_least_version_and_no_highest():
    project = tomllib.loads((versions._ROOT / "pyproject.toml").read_text())["project"]
    assert [
        each for each in project["dependencies"] if not re.fullmatch(r"[\w.-]+>=[\d.]+", each)
    ] == []


def test_a_test_in_two_results_counts_once_with_its_newest_outcome(tmp_path):
    for name, outcome in (("first", "<failure/>"), ("second", "")):
        (tmp_path / f"{name}.xml").write_text(
            f'<testsuite><testcase classname="a" name="b">{outcome}</testcase>'
            f'<testcase classname="a" name="{name}"><skipped/></testcase></testsuite>'
        )
    results = [tmp_path / "first.xml", tmp_path / "second.xml"]
    expected = {"passed": "1", "skipped": "2", "failed": "0"}
    assert versions.count_outcomes(results) == expected


def test_the_page_has_one_table_with_a_column_for_each_set():
    columns = {"oldest": {"jax": "0.10.0"}, "newest": {"jax": "0.12.0"}}
    text = versions.table(columns)
    assert text.splitlines()[:3] == [
        "| | oldest | newest |",
        "|---|---|---|",
        "| jax | 0.10.0 | 0.12.0 |",
    ]
    page = versions._PAGE.read_text()
    once = versions.with_table(page, text)
    assert text in once and versions.with_table(once, text) == once
    assert versions.with_table(once, "")[:100] == page[:100]
