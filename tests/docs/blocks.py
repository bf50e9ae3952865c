"""The fenced blocks of README.md and docs/**/*.md, and how each is run.

The word after the fence is the kind of the block:

- `sh`: one command per line, or several lines joined by backslashes. Bash runs them in order.
- `python`, `yaml`: if the first line is a comment with a file name, `# my_agent.py`, the block is
  written to that file. Otherwise Python is run, and YAML is loaded as a config.
- `text`: output and drawings, which are not run.

The blocks of a document run from top to bottom in one directory. A comment on the line before a
block adds:

- `<!-- not run: REASON -->`: why the block is not run;
- `<!-- exits with N -->`, before `sh`: the exit code of its last command, if it is not 0;
- `<!-- last line on stderr -->`, before `text`: the block is the last line on stderr of the `sh`
  block above. Numbers may differ, and `…` matches any text.
"""

import dataclasses
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
_TOP_LEVEL = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG", "SECURITY")]
DOCUMENTS = [*_TOP_LEVEL, *sorted((ROOT / "docs").rglob("*.md"))]
KINDS = {"sh", "python", "yaml", "text"}
LAST_LINE = "last line on stderr"
NOTES = {
    "sh": r"not run: .{10,}|exits with \d+",
    "python": r"not run: .{10,}",
    "yaml": r"not run: .{10,}",
    "text": LAST_LINE,
}
"""The permitted comments, by the kind of the block."""

_FENCE = re.compile(
    r"(?:<!-- (?P<note>[^\n]*) -->\n)?^```(?P<kind>\w*)[^\n]*\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_FILE_NAME = re.compile(r"# (?P<name>[\w/.-]+\.(?:py|yaml))\n")
_INLINE_COMMAND = re.compile(r"`((?:python -m (?:sebulba|benchmarks)|sebulba [a-z])[^`]*)`")
_LINK = re.compile(r"\]\((?!https?:)(?P<path>[^)#]*)(?:#(?P<anchor>[^)]*))?\)")
_HEADING = re.compile(r"^#+ (?P<title>.*)$", re.MULTILINE)


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
        """The file and line of the block."""
        return f"{self.document.relative_to(ROOT)}:{self.line}"

    @property
    def file_name(self) -> str | None:
        """The name of the file that the block is written to, if any."""
        match = _FILE_NAME.match(self.text)
        return match["name"] if match else None

    @property
    def is_run(self) -> bool:
        """Whether the block can be run and has no comment that forbids it."""
        return self.kind != "text" and not (self.note or "").startswith("not run: ")

    @property
    def exit_code(self) -> int:
        """The expected exit code of the last command."""
        match = re.fullmatch(r"exits with (\d+)", self.note or "")
        return int(match[1]) if match else 0

    @property
    def commands(self) -> list[str]:
        """The commands of a `sh` block, without comments."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line for line in lines if line.strip() and not line.startswith("#")]


def blocks_of(document: pathlib.Path) -> list[Block]:
    """Return the blocks of a document, from top to bottom."""
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
    """Return the number of lines that open or close a block, indented ones included."""
    return len(re.findall(r"^\s*(?:```|~~~)", document.read_text(), re.MULTILINE))


def inline_commands(document: pathlib.Path) -> list[str]:
    """Return the commands of the project that are quoted in the text, outside of blocks."""
    found = _INLINE_COMMAND.findall(_FENCE.sub("", document.read_text()))
    return [" ".join(command.split()) for command in found]


def links_of(document: pathlib.Path) -> list[tuple[str, str | None]]:
    """Return the links of a document inside the repository.

    Each is a path relative to the directory of the document, empty for the document itself, and an
    anchor, if any.
    """
    matches = _LINK.finditer(_FENCE.sub("", document.read_text()))
    return [(match["path"], match["anchor"]) for match in matches]


def anchors_of(document: pathlib.Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub and mkdocs derive them."""
    titles = _HEADING.findall(_FENCE.sub("", document.read_text()))
    words = (re.sub(r"[^\w\s-]", "", title.lower()).strip() for title in titles)
    return {re.sub(r"\s", "-", each) for each in words}


ALL_BLOCKS = [block for document in DOCUMENTS if document.exists() for block in blocks_of(document)]
