"""The page's own files, shipped beside this module: templates, which escape what they are given, styles and scripts."""

from functools import lru_cache
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template


def asset(name: str) -> str:
    """Return the text of one file under assets/."""
    return (resources.files("kvbench.report.html") / "assets" / name).read_text(encoding="utf-8")


def template(name: str) -> Template:
    """Return a template that escapes every value, unless the caller marked it as HTML, and takes no undefined one."""
    return _environment().get_template(name)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    loader = FunctionLoader(lambda name: asset(f"templates/{name}"))
    return Environment(autoescape=True, undefined=StrictUndefined, loader=loader, trim_blocks=True, lstrip_blocks=True)
