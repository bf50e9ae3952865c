"""The table of compiled configs in `docs/accelerators.md`."""

import dataclasses

import pytest

from benchmarks import compiled
from sebulba.aot.program import CompiledProgram, Message


def test_a_table_has_a_row_for_each_config_and_replaces_the_last():
    message = Message(kind="all-reduce", count=2, bytes=2048, is_in_loop=True)
    step = CompiledProgram(name="act step", role="actor", calls=20, compile_s=0.6)
    failed = dataclasses.replace(step, problem="no kernel")
    update = CompiledProgram(
        name="8 updates",
        role="learner",
        calls=1,
        compile_s=1.0,
        collectives=(message,),
        unasked=("float64",),
    )

    def report(*programs):
        return {
            "programs": [dataclasses.asdict(each) for each in programs],
            "topology": "h100:4",
            "launches": {
                "learner_cycle": 5030,
                "env_step": 21.0,
                "update": 70.5,
                "synchronisations": 17,
            },
            "places": [{"name": "learner device", "needs": 1024}],
            "at_best": {"env_steps_per_second": {"learning": 123_456.0, "acting": 2e6}},
        }

    reports = {
        "ppo": report(step, update),
        "sac": report(failed, update),
        "ant": {"error": "expected 4 devices"},
    }
    text = compiled.table(reports)
    assert text.splitlines()[2:] == [
        "| `ppo` | 2 s |  | 1.0 KiB | 2 all-reduce in a loop, 2.0 KiB |"
        " 5,030; 21; 70.5 | 17 | learning 1.2e+05,"
        " acting 2e+06 | 8 updates: float64 |",
        "| `sac` | act step: no kernel |  |  |  |  |  |  |  |",
        "| `ant` | expected 4 devices |  |  |  |  |  |  |  |",
    ]
    page = compiled._PAGE.read_text()
    once = compiled.with_table(page, "v5e:2x2", text)
    assert text in once and compiled.with_table(once, "v5e:2x2", text) == once
    assert compiled.with_table(once, "v5e:2x2", "")[:200] == page[:200]
    with pytest.raises(SystemExit, match="expected the marker"):
        compiled.with_table(page, "v6e:2x2", text)
