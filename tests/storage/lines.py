"""A display for tests of the lines of text that a run shows."""


class Lines:
    """Keeps lines of text, and details too."""

    def __init__(self):
        self.lines = []

    def update(self, row):
        """Drops a row of metrics."""

    def message(self, text, **_):
        """Keeps a line."""
        self.lines.append(text)

    def detail(self, text):
        """Keeps a line."""
        self.lines.append(text)

    def close(self):
        """Does nothing."""
