"""HTML out of Python values: every text is escaped, unless it is HTML made here."""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class Markup(str):
    """Text that is HTML already."""


def element(tag: str, *children: Any, **attributes: Any) -> Markup:
    """Returns an element.

    Args:
        tag: its name.
        children: `Markup` as it is, None as nothing, all else as escaped text.
        attributes: escaped; `class_` is `class`.
    """
    texts = [f' {name.rstrip("_")}="{html.escape(str(each))}"' for name, each in attributes.items()]
    return Markup(f"<{tag}{''.join(texts)}>{join(children)}</{tag}>")


def image(source: str, *, description: str) -> Markup:
    """Returns a picture from a `data:` URL."""
    return Markup(f'<img src="{html.escape(source)}" alt="{html.escape(description)}">')


def join(children: Iterable[Any]) -> Markup:
    """Returns the children one after another, escaped where they are no `Markup`."""
    return Markup(
        "".join(
            each if isinstance(each, Markup) else html.escape(str(each))
            for each in children
            if each is not None
        )
    )


def table(header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> Markup:
    """Returns a table with a row of headings."""
    head = element("tr", *(element("th", each, scope="col") for each in header))
    body = [element("tr", *(element("td", each) for each in row)) for row in rows]
    return element("table", element("thead", head), element("tbody", *body))


def pairs(values: Mapping[str, Any]) -> Markup:
    """Returns a table of names and values."""
    rows = [
        element("tr", element("th", name, scope="row"), element("td", value))
        for name, value in values.items()
    ]
    return element("table", element("tbody", *rows))


def code(text: str) -> Markup:
    """Returns a command or a file's text."""
    return element("pre", text)


def folded(summary: str, *children: Any) -> Markup:
    """Returns what shows once its heading is clicked."""
    return element("details", element("summary", summary), *children)
