"""The hook of mkdocs: pages that are made while the site is built, and what GitHub shows in another way.

The front page is README.md; every script of examples/ has a page; the reference is written from the code. Formulas
become MathML, so that no script has to draw them.
"""

import ast
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "src")]

from pages import reference  # noqa: E402 (after the path)

FENCE = re.compile(r"^```math\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"(?<![\\$\w`])\$([^$`\n]+)\$(?![\w$])")
CODE = re.compile(r"(^```.*?^```$|`[^`\n]*`)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """The pages that are no files of docs/."""
    pages = {"index.md": (ROOT / "README.md").read_text(), "changelog.md": (ROOT / "CHANGELOG.md").read_text()}
    pages |= {f"examples/{file.stem}.md": _example(file) for file in sorted((ROOT / "examples").glob("*.py"))}
    pages["examples/index.md"] = _examples()
    pages["running.md"] = (ROOT / "benchmarks" / "README.md").read_text()
    pages |= {f"reference/{name}.md": text for name, text in reference.pages().items()}
    for name, text in pages.items():
        page = File.generated(config, name, content=text)
        page.inclusion = page.inclusion if name in _in_nav(config.nav) else page.inclusion.NOT_IN_NAV
        files.append(page)
    files.append(File.generated(config, "LICENSE.txt", content=(ROOT / "LICENSE").read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as the site has them, and formulas drawn."""
    markdown = _links(markdown, page.file.src_uri)
    markdown = FENCE.sub(lambda match: f"\n{convert(match[1].strip(), display='block')}\n", markdown)
    return "".join(_code(piece) if i % 2 else _formulas(piece) for i, piece in enumerate(CODE.split(markdown)))


def _formulas(text: str) -> str:
    return INLINE.sub(lambda match: convert(match[1]), text)


def _code(text: str) -> str:
    """In a table GitHub wants a bar inside of code escaped; here the backslash would be shown."""
    return text if text.startswith("```") else text.replace("\\|", "|")


def _links(markdown: str, page: str) -> str:
    """Where a link leaves docs/ in the repository, the page that the site has in its place."""
    if page in ("index.md", "changelog.md"):
        markdown = re.sub(r"(?<=\]\()docs/", "", markdown)
        markdown = markdown.replace("](LICENSE)", "](LICENSE.txt)").replace("](CHANGELOG.md)", "](changelog.md)")
    markdown = re.sub(r"\]\((?:\.\./)?benchmarks/(?:README\.md)?", "](running.md", markdown)
    markdown = markdown.replace("](../docs/", "](")
    return re.sub(
        r"\]\((?:\.\./)?examples/(\w*)(?:\.py)?\)", lambda match: f"](examples/{match[1] or 'index'}.md)", markdown
    )


def _example(file: Path) -> str:
    return f"# {file.name}\n\n```python\n{file.read_text()}```\n"


def _examples() -> str:
    files = sorted((ROOT / "examples").glob("*.py"))
    lines = [f"- [{file.name}]({file.stem}.md): {_first_line(file)}" for file in files]
    return "# Examples\n\n" + "\n".join(lines) + "\n"


def _first_line(file: Path) -> str:
    docstring = ast.get_docstring(ast.parse(file.read_text())) or ""
    return docstring.partition("\n")[0]


def _in_nav(nav: Any) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    return set().union(*map(_in_nav, nav.values() if isinstance(nav, dict) else nav))
