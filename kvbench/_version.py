"""The version of kvbench, on its own so that every module may ask for it."""

from typing import Final

__version__: Final = "0.1.0"
