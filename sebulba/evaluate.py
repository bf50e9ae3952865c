"""The command `python -m sebulba.evaluate`; its code is in `sebulba.tools.evaluate.arguments`."""

import sys

from sebulba.process import run_command
from sebulba.tools.evaluate.arguments import main

if __name__ == "__main__":
    run_command(main)
elif __name__ == "sebulba.evaluate":
    # An import of this file binds its name in the package to what `sys.modules` holds in the end.
    # There, the name is that of a function.
    import sebulba

    sys.modules[__name__] = sebulba.evaluate  # type: ignore[assignment]
