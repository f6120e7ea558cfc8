"""The version of kvbench, in its own module so that every module can import it."""

from typing import Final

__version__: Final = "0.1.0"
