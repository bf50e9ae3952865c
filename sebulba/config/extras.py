"""Optional packages, and the extras of this package that install them, for errors."""

EXTRAS: dict[str, str] = {
    "ale_py": "atari",
    "bsuite": "bsuite",
    "craftax": "craftax",
    "gymnax": "gymnax",
    "jaxmarl": "jaxmarl",
    "jumanji": "jumanji",
    "mctx": "search",
    "mujoco": "mujoco",
    "mujoco_playground": "playground",
    "mpe2": "pettingzoo",
    "pettingzoo": "pettingzoo",
    "pgx": "pgx",
    "ray": "ray",
}
"""The extra of this package that installs each optional module."""


def missing_package(error: BaseException) -> str | None:
    """Return what to install if a missing module of `EXTRAS` caused the error, else None."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ModuleNotFoundError) and cause.name is not None:
            module = cause.name.partition(".")[0]
            if module in EXTRAS:
                return f"the package {module} is not installed; run {install_command(module)}"
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return None


def install_command(module: str) -> str:
    """Return the command that installs a module of `EXTRAS`."""
    return f"pip install 'sebulba[{EXTRAS[module]}]'"
