"""Build HTML from Python values; all text is escaped, except HTML made here."""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class Markup(str):
    """Text that is HTML, and not escaped again."""


def element(tag: str, *children: Any, **attributes: Any) -> Markup:
    """Return an element.

    Args:
        tag: name of the element.
        children: `Markup` is kept, None is left out, anything else becomes escaped text.
        attributes: values are escaped; `class_` becomes `class`.
    """
    texts = [f' {name.rstrip("_")}="{html.escape(str(each))}"' for name, each in attributes.items()]
    return Markup(f"<{tag}{''.join(texts)}>{join(children)}</{tag}>")


def image(source: str, *, description: str) -> Markup:
    """Return an image; the source is a `data:` URL."""
    return Markup(f'<img src="{html.escape(source)}" alt="{html.escape(description)}">')


def join(children: Iterable[Any]) -> Markup:
    """Concatenate children, as `element` does."""
    return Markup(
        "".join(
            each if isinstance(each, Markup) else html.escape(str(each))
            for each in children
            if each is not None
        )
    )


def table(header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> Markup:
    """Return a table with a header row."""
    head = element("tr", *(element("th", each, scope="col") for each in header))
    body = [element("tr", *(element("td", each) for each in row)) for row in rows]
    return element("table", element("thead", head), element("tbody", *body))


def pairs(values: Mapping[str, Any]) -> Markup:
    """Return a table of names and values."""
    rows = [
        element("tr", element("th", name, scope="row"), element("td", value))
        for name, value in values.items()
    ]
    return element("table", element("tbody", *rows))


def code(text: str) -> Markup:
    """Return preformatted text."""
    return element("pre", text)


def folded(summary: str, *children: Any) -> Markup:
    """Return a section that opens when its summary is clicked."""
    return element("details", element("summary", summary), *children)
