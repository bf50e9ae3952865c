"""Imports that wait until a module is used: what a run does not use takes most of their time."""

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
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


def execute_when_used(package: str, is_deferred: Callable[[ModuleSpec], bool]) -> None:
    """Execute some modules when the first of their names is read, and not when they are imported.

    For packages of which only a module is needed, which imports them: `importlib.util.LazyLoader`
    would execute the package then. Modules that are already imported stay as they are.

    Args:
        package: the package that holds these modules, or is one of them.
        is_deferred: whether a module of it is one.
    """
    sys.meta_path.insert(0, _Finder(package, is_deferred))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, package: str, is_deferred: Callable[[ModuleSpec], bool]):
        self._package = package
        self._is_deferred = is_deferred

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not f"{fullname}.".startswith(f"{self._package}."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None or not self._is_deferred(spec):
            return None
        spec.loader = _WhenUsed(spec.loader)
        return spec


class _WhenUsed(importlib.abc.Loader):
    """Executes a module when the first of its names is read."""

    def __init__(self, loader: importlib.abc.Loader):
        self._loader = loader

    def exec_module(self, module: ModuleType) -> None:
        names, lock, waiting = vars(module), threading.RLock(), [self._loader]

        def read(name: str) -> Any:
            # Python looks for names like `__path__` in every module.
            if name == "__all__" or not name.startswith("__"):
                with lock:
                    if waiting:  # The module itself reads names, too, while it is executed.
                        loader = waiting.pop()
                        try:
                            loader.exec_module(module)
                        except BaseException:
                            waiting.append(loader)
                            raise
            if name not in names:
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            return names[name]

        names["__getattr__"] = read
