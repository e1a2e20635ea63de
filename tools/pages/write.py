"""Write the generated pages, or tell which are out of date.

python tools/pages/write.py            writes docs/benchmarks.md and the figures that other pages quote
python tools/pages/write.py --check    writes nothing; exit code 1 if a page differs
"""

import sys

from pages import figures


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    pages = figures.written()
    stale = [file for file, text in pages.items() if not file.exists() or file.read_text() != text]
    for file in stale:
        print(f"{file.relative_to(figures.ROOT)} {'is out of date: make pages' if check else 'written'}")
        if not check:
            file.write_text(pages[file])
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
