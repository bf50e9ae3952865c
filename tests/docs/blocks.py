"""The fenced blocks of README.md and docs/*.md, and how each is run.

Kinds, by the word after the fence:

- `sh`: commands, one a line, a backslash joining lines. They are run by bash, in order.
- `python`, `yaml`: a block whose first line is a comment that names a file, `# my_agent.py`, is
  written to that file; another Python block is run, another YAML block is loaded as a config.
- `text`: output, layouts, drawings: nothing to run.

The blocks of a document are one session, from top to bottom, in one directory. A comment right
before a block says what else there is to know:

- `<!-- not run: REASON -->`;
- `<!-- exits with N -->`, before `sh`: what its last command ends with, if it is not 0;
- `<!-- last line on stderr -->`, before `text`: of the last `sh` block; numbers may differ, and `…`
  stands for anything.
"""

import dataclasses
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
KINDS = {"sh", "python", "yaml", "text"}
LAST_LINE = "last line on stderr"
NOTES = {
    "sh": r"not run: .{10,}|exits with \d+",
    "python": r"not run: .{10,}",
    "yaml": r"not run: .{10,}",
    "text": LAST_LINE,
}
"""What may be said of a block, by its kind."""

_FENCE = re.compile(
    r"(?:<!-- (?P<note>[^\n]*) -->\n)?^```(?P<kind>\w*)[^\n]*\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_FILE_NAME = re.compile(r"# (?P<name>[\w/.-]+\.(?:py|yaml))\n")
_INLINE_COMMAND = re.compile(r"`(python -m (?:sebulba|benchmarks)[^`]*)`")
_LINK = re.compile(r"\]\((?!https?:)(?P<path>[^)#]+)(?:#[^)]*)?\)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """One fenced block."""

    document: pathlib.Path
    line: int
    kind: str
    text: str
    note: str | None

    @property
    def place(self) -> str:
        """Where to find it."""
        return f"{self.document.relative_to(ROOT)}:{self.line}"

    @property
    def file_name(self) -> str | None:
        """The file that the block is, if it is one."""
        match = _FILE_NAME.match(self.text)
        return match["name"] if match else None

    @property
    def is_run(self) -> bool:
        """Whether there is something to run, and nothing against it."""
        return self.kind != "text" and not (self.note or "").startswith("not run: ")

    @property
    def exit_code(self) -> int:
        """What the last command is to end with."""
        match = re.fullmatch(r"exits with (\d+)", self.note or "")
        return int(match[1]) if match else 0

    @property
    def commands(self) -> list[str]:
        """The commands of a `sh` block."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line for line in lines if line.strip() and not line.startswith("#")]


def blocks_of(document: pathlib.Path) -> list[Block]:
    """Returns a document's blocks, from top to bottom."""
    text = document.read_text()
    return [
        Block(
            document=document,
            line=text[: match.start("text")].count("\n"),
            kind=match["kind"],
            text=match["text"],
            note=match["note"],
        )
        for match in _FENCE.finditer(text)
    ]


def num_fences(document: pathlib.Path) -> int:
    """Returns how many lines open or close a block, indented ones included."""
    return len(re.findall(r"^\s*(?:```|~~~)", document.read_text(), re.MULTILINE))


def inline_commands(document: pathlib.Path) -> list[str]:
    """Returns the project's commands that stand within the text, without placeholders in it."""
    found = _INLINE_COMMAND.findall(_FENCE.sub("", document.read_text()))
    return [" ".join(command.split()) for command in found]


def links_of(document: pathlib.Path) -> list[str]:
    """Returns the files that a document links to, relative to its own directory."""
    return [match["path"] for match in _LINK.finditer(_FENCE.sub("", document.read_text()))]


ALL_BLOCKS = [block for document in DOCUMENTS if document.exists() for block in blocks_of(document)]
