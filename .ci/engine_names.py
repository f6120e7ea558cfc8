"""Print what the newest release of every engine must have: its package, a file, and a name in it, if one is needed."""

import pkgutil
from importlib import import_module

from kvbench import engines

for module in pkgutil.iter_modules(engines.__path__, "kvbench.engines."):
    for code in getattr(import_module(module.name), "CODES", ()):
        for file, names in code.files.items():
            for name in names or ("",):
                print(code.package, file, name)
