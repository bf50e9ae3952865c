"""Finding things by the names that a config gives, with errors that help."""

import importlib.util

EXTRAS: dict[str, str] = {
    "ale_py": "atari",
    "gymnax": "gymnax",
    "mujoco": "mujoco",
}
"""The extra of this package that installs a module, for the modules that not everybody needs."""

_NAMESPACES: dict[str, str] = {"ALE": "ale_py"}
"""The module that registers a Gymnasium namespace; Gymnasium itself does not import it."""


def missing_package(error: BaseException) -> str | None:
    """Returns which package to install, if an error comes of a missing one that an extra brings."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ModuleNotFoundError) and cause.name is not None:
            module = cause.name.partition(".")[0]
            if module in EXTRAS:
                return describe_missing(module)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return None


def describe_namespace(name: str) -> str:
    """Returns `"; ..."`, how to come by a Gymnasium id of a known namespace, or nothing."""
    module = _NAMESPACES.get(name.partition("/")[0])
    if module is None or "/" not in name:
        return ""
    registers = f"{module}:{name} would import what registers it"
    if importlib.util.find_spec(module) is None:
        return f"; {registers}, after {install_command(module)}"
    return f"; {registers}"


def describe_missing(module: str) -> str:
    """Returns what to do about a missing module of `EXTRAS`."""
    return f"expected the package {module}, which is not installed: {install_command(module)}"


def install_command(module: str) -> str:
    """Returns the command that installs a module of `EXTRAS`."""
    return f"pip install 'sebulba[{EXTRAS[module]}]'"
