"""The fenced blocks of README.md and docs/*.md, and how each is run.

Kinds, by the word after the fence:

- `sh`: commands, one a line, a backslash joining lines. They are run by bash, in order.
- `python`, `yaml`: a block whose first line is a comment that names a file, `# my_agent.py`, is
  written to that file; another Python block is run, another YAML block is loaded as a config.
- `text`: output, layouts, drawings: nothing to run.

The blocks of a document are one session, from top to bottom, in one directory. A comment right
before a block says what else there is to know: `<!-- not run: REASON -->`.
"""

import dataclasses
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
KINDS = {"sh", "python", "yaml", "text"}

_FENCE = re.compile(
    r"(?:<!-- (?P<note>[^\n]*) -->\n)?^```(?P<kind>\w*)[^\n]*\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_FILE_NAME = re.compile(r"# (?P<name>[\w/.-]+\.(?:py|yaml))\n")


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


ALL_BLOCKS = [block for document in DOCUMENTS if document.exists() for block in blocks_of(document)]
