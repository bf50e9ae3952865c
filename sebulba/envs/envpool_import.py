"""EnvPool's module, imported without matplotlib, which takes half of the time."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

from sebulba.errors import ConfigError

# EnvPool imports all of its suites, and these modules of one, which import matplotlib.
_DRAWING = "envpool.jumanji._official_render."
_OPENGL = "libEGL.so.1"


class _LazyDrawing(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(_DRAWING):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def _import_envpool() -> ModuleType:
    finder = _LazyDrawing()
    sys.meta_path.insert(0, finder)
    try:
        import envpool
    except ImportError as error:
        if _OPENGL not in str(error):
            raise
        raise ConfigError(
            f"env.suite: EnvPool needs {_OPENGL}, which this machine lacks: apt-get install libegl1"
        ) from error
    finally:
        sys.meta_path.remove(finder)
    return envpool


envpool = _import_envpool()
"""Its Jumanji games import matplotlib when they first draw."""
