"""The table of compiled configs in `docs/accelerators.md`."""

import dataclasses

import pytest

from benchmarks import compiled
from sebulba.devices.compiled import CompiledProgram, Message


def test_a_table_has_a_row_for_each_program_and_replaces_the_last():
    message = Message(kind="all-reduce", count=2, bytes=2048, is_in_loop=True)
    update = CompiledProgram(
        name="8 updates", role="learner", calls=1, collectives=(message,), flops={"float32": 2e9}
    )
    failed = CompiledProgram(name="act step", role="actor", calls=20, problem="no kernel")
    report = {"programs": [dataclasses.asdict(each) for each in (failed, update)]}
    text = compiled.table({"ppo": report})
    assert text.splitlines()[2:] == [
        "| ppo | act step (20 calls) | no kernel |  |  |  |  |  |",
        "| ppo | 8 updates | 0 s | 0 B | 0 B | 2 all-reduce in a loop, 2.0 KiB | 2 GFLOP |  |",
    ]
    page = compiled._PAGE.read_text()
    once = compiled.with_table(page, "v5e:2x2", text)
    assert text in once and compiled.with_table(once, "v5e:2x2", text) == once
    assert compiled.with_table(once, "v5e:2x2", "")[:200] == page[:200]
    with pytest.raises(SystemExit, match="expected the marker"):
        compiled.with_table(page, "v6e:2x2", text)
