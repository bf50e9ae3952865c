"""The errors of configs."""

import pytest

from sebulba.config.loading import ConfigError, load_config


def error_of(path, arguments=()):
    """Returns the one line with which a config is refused, which calls its file `x.yaml`."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(str(path), "x.yaml")
