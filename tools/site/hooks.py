"""What `make docs` adds to mkdocs: files of the repository that a page links to become pages of the site.

A page in docs/ may link to `../examples/fair_classifier.py`: on a forge that opens the file, and on the site it opens a
page that shows it. A link to a folder opens a list of its files. So one link serves both, and a strict build finds one
that leads nowhere.

A figure of a notebook has its alternative text in the metadata of its cell, as `alt`, since no template of the site
has a place for it.
"""

from __future__ import annotations

import json
import posixpath
import re
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")
LANGUAGES = {".py": "python", ".json": "json", ".toml": "toml", ".yml": "yaml", ".sh": "bash", ".csv": "text"}


def repository_path(page: str, link: str) -> Path | None:
    """What a link of a page leads to outside docs/, from the repository's root; None if it stays inside."""
    target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    if target.startswith(("docs/", "..")) or not (ROOT / target).exists():
        return None
    return Path(target)


def shown_at(path: Path) -> str:
    """Where the site shows a file of the repository."""
    return f"files/{path.as_posix()}.md"


def shown(path: Path) -> str:
    """A page that shows a file, or lists a folder."""
    whole = ROOT / path
    if whole.is_dir():
        names = sorted(p.relative_to(whole).as_posix() for p in whole.rglob("*") if p.is_file())
        return f"# {path}\n\n" + "\n".join(f"- `{name}`" for name in names) + "\n"
    text = whole.read_text()
    if path.suffix == ".md":
        return text
    return f"# {path}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{text}\n````\n"


def on_files(files: Files, *, config: Any) -> Files:
    """Add a page for everything outside docs/ that a page links to."""
    wanted: set[Path] = set()
    for file in list(files.documentation_pages()):
        if file.src_uri.endswith(".md"):
            links = LINK.findall(file.content_string)
            wanted |= {path for link in links if (path := repository_path(file.src_uri, link)) is not None}
    for path in sorted(wanted):
        page = File.generated(config, shown_at(path), content=shown(path))
        page.inclusion = page.inclusion.NOT_IN_NAV
        files.append(page)
    return files


def on_page_markdown(markdown: str, *, page: Any, files: Files, **_: Any) -> str:
    """Let links between docs/ and the rest of the repository lead to where the site shows their targets."""
    here = page.file.src_uri
    # Where the text stands in the repository, which its links count from.
    home = here[len("files/") : -len(".md")] if here.startswith("files/") else f"docs/{here}"

    def redirected(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(home), found.group(1)))
        shown_as = target[len("docs/") :] if target.startswith("docs/") else shown_at(Path(target))
        if files.get_file_from_path(shown_as) is None:
            return found.group(0)
        return posixpath.relpath(shown_as, posixpath.dirname(here) or ".")

    return LINK.sub(redirected, markdown)


WITHOUT_TEXT = "No description has been provided for this image"


def on_page_content(html: str, *, page: Any, **_: Any) -> str:
    """Give the figures of a notebook their alternative texts, in their order."""
    if not page.file.src_uri.endswith(".ipynb"):
        return html
    cells = json.loads(Path(page.file.abs_src_path).read_text())["cells"]
    for text in [cell["metadata"]["alt"] for cell in cells if "alt" in cell["metadata"]]:
        html = html.replace(WITHOUT_TEXT, escape(text), 1)
    if WITHOUT_TEXT in html:
        raise ValueError(f"{page.file.src_uri} has a figure without a text: give its cell the metadata `alt`")
    return html
