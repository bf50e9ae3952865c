"""The flags that a run adds to those of the user."""

import os

from sebulba.devices.xla_flags import set_xla_flags


def test_the_flags_of_a_file_are_kept(tmp_path, monkeypatch):
    """XLA reads the file that `XLA_FLAGS` names, but not if other flags are behind the name."""
    file = tmp_path / "flags.txt"
    file.write_text("--xla_cpu_max_isa=AVX2\n--xla_dump_to=there\n")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("XLA_FLAGS", str(file))
    set_xla_flags()
    words = os.environ["XLA_FLAGS"].split()
    assert words[:2] == ["--xla_cpu_max_isa=AVX2", "--xla_dump_to=there"]
    assert all(word.startswith("--") for word in words)


def test_a_file_that_is_missing_is_left_to_xla(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", str(tmp_path / "none.txt"))
    set_xla_flags()
    assert os.environ["XLA_FLAGS"] == str(tmp_path / "none.txt")
