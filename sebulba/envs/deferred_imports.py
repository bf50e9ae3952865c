"""Imports that wait until a module is used: drawing takes most of the time of some imports."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any


class _Deferred(ModuleType):
    """Stands in for a module, and imports it when an attribute of it is read."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:  # read while its import is deferred
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def deferred(*names: str) -> Iterator[None]:
    """Defer the imports of these modules by other modules that are imported meanwhile.

    `from NAME import x` is not deferred.
    """
    stand_ins = {name: _Deferred(name) for name in names if name not in sys.modules}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, stand_in in stand_ins.items():
            if sys.modules.get(name) is stand_in:
                del sys.modules[name]
