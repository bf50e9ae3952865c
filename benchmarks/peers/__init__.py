"""Training of other systems beside ours: begin with `__main__.py`."""
