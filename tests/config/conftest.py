"""What several files of tests write."""

import pytest


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a config, and returns its path."""

    def write_config(text: str) -> str:
        path = tmp_path / "x.yaml"
        path.write_text(text)
        return str(path)

    return write_config
