"""Hooks of mkdocs: a copy of the package for the API pages, formulas as MathML, roles of docstrings as code.

MathML is drawn by the browser itself, so that the pages need no script from elsewhere and open offline.
"""

from __future__ import annotations

import html
import re
import shutil
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.plugins import event_priority

# Left by pymdownx.arithmatex: \(...\) within a line, \[...\] on lines of its own.
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
# In notebooks: code (left as it is), formulas between dollars, links to pages beside the folder of notebooks.
_CODE = re.compile(r"(<(?:pre|code|script|style)\b.*?</(?:pre|code|script|style)>)", re.DOTALL)
_DOLLARS = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$", re.DOTALL)
_LINK = re.compile(r'href="\.\./(\w+)\.md(#[^"]*)?"')
# Attributes that share a line of a docstring, as in "epochs, steps: how far it came": mkdocstrings takes all but the
# first for a type.
_SHARED = re.compile(r"(<b><code>(?:<span[^>]*>)?\w+),(</span>)?</code></b>\s*\(<code>\((.*?)\)</code>\)", re.DOTALL)
_TAG = re.compile(r"<[^>]+>")
# Roles of Sphinx, as in :class:`~lab.runs.lock.Holder`.
_ROLE = re.compile(r":(?:func|class|meth|mod|attr|data):(<code[^>]*>)~?")


@event_priority(100)
def on_config(config: Any) -> None:
    """Copies the package for mkdocstrings, which takes neither symbolic links nor folders without ``__init__.py``.

    Runs before the plugin's own ``on_config``, which leaves out a path that is not there yet.
    """
    root = Path(config.config_file_path).parent
    copy = root / "build" / "api" / "lab"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(root / "lab", copy, ignore=lambda _, names: [one for one in names if not _is_code(one)])
    for folder in filter(Path.is_dir, copy.rglob("*")):
        (folder / "__init__.py").touch()


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Returns CONTRIBUTING.md with links that start at docs/, where its page lies; links to other folders are text."""
    if page.file.src_uri != "contributing.md":
        return markdown
    text = (Path(config.config_file_path).parent / "CONTRIBUTING.md").read_text()
    return re.sub(r"\[([^\]]*)\]\((?!https?:|#|docs/)[^)]*\)", r"\1", text).replace("](docs/", "](")


def _is_code(name: str) -> bool:
    return name.endswith((".py", ".pyi")) or ("." not in name and name not in ("__pycache__", "configs"))


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Returns the HTML of a page with formulas as MathML; in a notebook, also with links to pages in mkdocs's form."""
    if page.file.src_uri.endswith(".ipynb"):
        parts = _CODE.split(content)
        # Even places hold the text between the pieces of code.
        parts[::2] = [_LINK.sub(r'href="../../\1/\2"', _DOLLARS.sub(_marked, part)) for part in parts[::2]]
        content = "".join(parts).replace('href="../../index/', 'href="../../')
    return _ROLE.sub(r"\1", _FORMULA.sub(_mathml, content))


def on_post_page(output: str, **_: Any) -> str:
    """Returns a whole page, its links among names made before, with all attributes that share a line shown as names."""
    return _SHARED.sub(lambda found: f"{found[1]}{found[2] or ''}, {_TAG.sub('', found[3])}</code></b>", output)


def _marked(found: re.Match[str]) -> str:
    """Marks a formula between dollars as arithmatex would, which does not process notebooks."""
    own_line, within = found.groups()
    if own_line is not None:
        return rf'<div class="arithmatex">\[{own_line}\]</div>'
    return rf'<span class="arithmatex">\({within}\)</span>'


def _mathml(found: re.Match[str]) -> str:
    display = "block" if found[1] == "div" else "inline"
    return convert(html.unescape(found[2]), display=display)
