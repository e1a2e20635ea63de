"""What a package index shows of Ludus: the README. pyproject.toml has all the rest.

An index shows pictures and follows links only if their addresses are whole. Whoever publishes the package says
where the files of the repository lie:

    LUDUS_URL=https://… pip wheel --no-deps .

Without that, pictures are left out and links become their text, so that nothing on the page leads nowhere.
"""

import os
import re
from pathlib import Path

from setuptools import setup

_PICTURE = re.compile(r"!\[([^\]]*)\]\((?!https?://)([^)]+)\)\n*")
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?://|#)([^)]+)\)")


def description(readme: str, url: str = "") -> str:
    """The README with whole addresses below `url`, or without what has none."""
    if not url:
        return _LINK.sub(r"\1", _PICTURE.sub("", readme))
    whole = _PICTURE.sub(lambda found: f"![{found[1]}]({url.rstrip('/')}/{found[2]})\n\n", readme)
    return _LINK.sub(lambda found: f"[{found[1]}]({url.rstrip('/')}/{found[2]})", whole)


if __name__ == "__main__":
    address = os.environ.get("LUDUS_URL", "")
    text = Path(__file__).with_name("README.md").read_text()
    setup(
        long_description=description(text, address),
        long_description_content_type="text/markdown",
        project_urls={"Homepage": address} if address else {},
    )
