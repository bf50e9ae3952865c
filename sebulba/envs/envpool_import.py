"""EnvPool's module, imported without the code of suites that are not used.

EnvPool imports all of its suites, whose libraries take nine tenths of the time. What they need to
be listed is in a module of their own, `registration`.
"""

import os
from importlib.machinery import ModuleSpec

from sebulba.envs.deferred_imports import execute_when_used

_DRAWING = "envpool.jumanji._official_render."  # imports matplotlib


def _is_deferred(spec: ModuleSpec) -> bool:
    places = spec.submodule_search_locations or ()
    is_suite = any(os.path.exists(f"{place}/registration.py") for place in places)
    return (is_suite and spec.name != "envpool") or spec.name.startswith(_DRAWING)


execute_when_used("envpool", _is_deferred)

import envpool  # noqa: E402 - what is deferred has to be said before

__all__ = ["envpool"]
