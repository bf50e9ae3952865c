"""The error of a wrong configuration, how a command reports it, and texts for error messages."""

import contextlib
import difflib
import pathlib
import sys
from collections.abc import Iterable, Iterator

from sebulba.process import EXIT_CONFIG

MAX_LISTED = 40
PLACE = "This happened in"
"""How a note on an error begins that says which part of a run it happened in."""
ALSO = "Also:"
"""How a note on an error begins that tells of a later error."""
_INSTALLED = {"site-packages", "dist-packages", "sebulba_agents"}
"""Folders of code that is not the user's."""


class ConfigError(ValueError):
    """The requested run is impossible; one line names the key, what was expected and what came."""


def refuse(error: Exception, *, usage: str | None = None) -> int:
    """Print why a command cannot run, and return its exit code.

    Args:
        error: names what is wrong with the command line or the config.
        usage: is printed before; None: nothing.
    """
    text = f"sebulba: {error}" if usage is None else f"{usage}\n{error}"
    print(escaped(text), file=sys.stderr)
    return EXIT_CONFIG


@contextlib.contextmanager
def calling(what: str, *, given: str = "") -> Iterator[None]:
    """Raise an error of a user's function as a ConfigError that names the function.

    Args:
        what: the config key or argument, and the name of the function.
        given: what the function got, as text.

    Raises:
        ConfigError: with the error as its cause.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        arguments = f"; it was called with {given}" if given else ""
        raise ConfigError(f"{what} raised {describe_error(error)}{arguments}") from error


def describe_error(error: BaseException) -> str:
    """Return an error in one line: type, first line of the message, and the user's line of code.

    An error that has no message, such as that of an `assert`, has at least its own line of code.
    """
    import traceback  # Here and not above: `--help` does not need it.

    lines = str(error).strip().splitlines()
    frames = traceback.extract_tb(error.__traceback__)
    shown = [frame for frame in frames if _is_users(frame.filename)] or ([] if lines else frames)
    text = f"{type(error).__name__}{f': {lines[0]}' if lines else ''}"
    if not shown:
        return text
    return f"{text} ({pathlib.Path(shown[-1].filename).name}:{shown[-1].lineno}: {shown[-1].line})"


def _is_users(file: str) -> bool:
    """Return whether a file is outside of installed packages and us."""
    folders = (str(pathlib.Path(__file__).parent), str(pathlib.Path(contextlib.__file__).parent))
    return not file.startswith(("<", *folders)) and _INSTALLED.isdisjoint(pathlib.Path(file).parts)


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """Return the suggestion to append to an error about an unknown name.

    Args:
        name: the unknown name.
        valid: the valid names. All are listed, unless there are more than `MAX_LISTED`.

    Returns:
        `"; did you mean num_envs? (known: num_envs, cycle)"`. The question is left out if no name
        is similar, and the list if it is empty or too long.
    """
    valid = list(valid)
    nearest = nearest_names(name, valid)
    question = f"did you mean {' or '.join(nearest)}?"
    known = f"known: {', '.join(valid)}"
    is_listed = 0 < len(valid) <= MAX_LISTED
    if nearest:
        return f"; {question} ({known})" if is_listed else f"; {question}"
    return f"; {known}" if is_listed else ""


def nearest_names(name: str, valid: Iterable[str], *, most: int = 3) -> list[str]:
    """Return the valid names that are spelled most like `name`, in any case, the nearest first.

    Those that begin with it follow.
    """
    by_lower_case = {each.lower(): each for each in valid}
    matches = difflib.get_close_matches(name.lower(), by_lower_case, n=most)
    if len(name) > 2:
        matches += [each for each in by_lower_case if each.startswith(name.lower())]
    return [by_lower_case[match] for match in dict.fromkeys(matches)][:most]


def one_line(text: str) -> str:
    """Return text with newlines escaped, too: those of a foreign file could forge lines."""
    return escaped(text).replace("\n", "\\n")


def escaped(text: str) -> str:
    """Return text with control characters escaped, except newlines: they could drive a terminal."""
    return "".join(
        each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in text
    )
