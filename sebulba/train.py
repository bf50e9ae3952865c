"""The command `python -m sebulba.train`; its code is in `sebulba.tools.train`."""

import sys

from sebulba.process import run_command
from sebulba.tools.train import main

if __name__ == "__main__":
    run_command(main)
elif __name__ == "sebulba.train":
    # An import of this file binds its name in the package to what `sys.modules` holds in the end.
    # There, the name is that of a function.
    import sebulba

    sys.modules[__name__] = sebulba.train  # type: ignore[assignment]
