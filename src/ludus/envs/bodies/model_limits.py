"""What a model's file may hold, looked at before MuJoCo reads it.

MuJoCo trusts its files: some end the process, others take all memory for a line of text. Ludus reads what
strangers send, so whatever is not plain bodies, joints, geoms, meshes and motors of a usual size is refused here.
"""

import math
import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from ludus.errors import ConfigError, LudusError, plain_text
from ludus.files import open_regular, read_bounded

FILES = ("file", "fileright", "fileleft", "fileup", "filedown", "filefront", "fileback")  # attributes of assets
_MOST_BYTES, _MOST_ASSET_BYTES = 50_000_000, 500_000_000
_MOST_ELEMENTS, _DEEPEST, _MOST_INCLUDED = 100_000, 100, 100
# They make many parts of few words, run other code or read other models.
_REFUSED = frozenset(
    ("attach", "model", "replicate", "composite", "flexcomp", "flex", "hfield", "skin", "extension", "plugin")
)
_MOST_NUMBERS, _MOST_MEMORY = 100_000, 2**30  # of what <size> asks for
_MOST = {
    ("numeric", "size"): 1_000_000,
    ("texture", "width"): 8_192,
    ("texture", "height"): 8_192,
    ("user", "dim"): 10_000,
}
_FOLDERS = ("meshdir", "texturedir", "assetdir")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50, "E": 2**60}


def refuse_harm(file: Path) -> None:
    """Raise a ConfigError where the file, or one that it includes, is not what a robot needs."""
    places: dict[str, str] = {}
    assets: list[tuple[str, str]] = []  # (what kind, its file)
    for count, (part, element) in enumerate(_all_elements(file)):
        if count == _MOST_ELEMENTS:
            raise ConfigError(f"{file} has more than {_MOST_ELEMENTS:,} elements; a robot has fewer.")
        if count == 0 and element.tag != "mujoco":
            tag = plain_text(str(element.tag), 100)
            raise ConfigError(f"{file} is not MJCF: it begins with <{tag}>. MuJoCo's 'compile' converts URDF.")
        _check(element, part)
        if element.tag == "compiler":
            places |= {name: element.attrib[name] for name in _FOLDERS if name in element.attrib}
        elif element.tag != "include":
            assets += [(element.tag, element.attrib[name]) for name in FILES if name in element.attrib]
    for kind, name in assets:
        _check_asset(file, _asset(file, kind, name, places))


def _all_elements(file: Path) -> Iterator[tuple[Path, Element]]:
    """(where it stands, element) of a file and those it includes, whose names are seen from the first."""
    read: list[Path] = []
    waiting = [file]
    while waiting:
        part = waiting.pop()
        if part in read:
            raise ConfigError(f"{file} includes {part} twice, or itself.")
        read.append(part)
        if len(read) > _MOST_INCLUDED:
            raise ConfigError(f"{file} includes more than {_MOST_INCLUDED} files.")
        for element in _elements(part):
            if element.tag == "include":
                waiting.append(file.parent / element.get("file", ""))
            yield part, element


def _elements(file: Path) -> Iterator[Element]:
    try:
        content = read_bounded(file, _MOST_BYTES)
    except OSError as error:
        raise ConfigError(f"The model {file} cannot be read: {error.strerror or error}.") from error
    except LudusError as error:
        raise ConfigError(str(error)) from error
    if b"<!DOCTYPE" in content or b"<!ENTITY" in content:
        raise ConfigError(f"{file} declares a document type or entities, which no robot needs: take them out.")
    depth = 0
    try:
        for event, element in ElementTree.iterparse(BytesIO(content), ("start", "end")):
            depth += 1 if event == "start" else -1
            if depth > _DEEPEST:
                raise ConfigError(
                    f"{file} has more than {_DEEPEST} elements inside each other; a robot has fewer."
                )
            if event == "start":
                yield element
            else:
                element.clear()
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise ConfigError(f"{file} is not XML: {plain_text(str(error), 300)}.") from error


def _check(element: Element, file: Path) -> None:
    tag = plain_text(str(element.tag), 100)
    if element.tag in _REFUSED:
        raise ConfigError(
            f"{file} has <{tag}>. A body is read from bodies, joints, geoms, meshes and motors alone: write out "
            "what it makes, or take it out."
        )
    for name, value in element.attrib.items():
        most = _most(str(element.tag), name)
        if _number(value) > most:
            raise ConfigError(f"{file}: {name} of <{tag}> is {plain_text(value, 40)}; at most {most:,} is read.")


def _most(tag: str, name: str) -> float:
    """Of a number by which memory is taken; without end of others."""
    if tag == "size":
        return _MOST_MEMORY if name == "memory" else _MOST_NUMBERS
    return _MOST.get((tag, name), math.inf)


def _number(value: str) -> float:
    """As MuJoCo understands it, or 0 where it will say itself what is wrong."""
    found = re.fullmatch(r"\s*\+?(\d{1,30})\s*([KMGTPE]?)\s*", value)
    return int(found[1]) * _UNITS[found[2]] if found else 0


def _asset(file: Path, kind: str, name: str, places: dict[str, str]) -> Path:
    folder = places.get("texturedir" if kind == "texture" else "meshdir", places.get("assetdir", ""))
    return file.parent / folder / name


def _check_asset(file: Path, asset: Path) -> None:
    """A pipe would be waited for without end; a device has none. What is missing MuJoCo tells itself."""
    if not asset.exists():
        return
    try:
        with open_regular(asset) as content:
            size = content.seek(0, 2)
    except OSError as error:
        raise ConfigError(f"{file} names {asset}, which cannot be read: {error.strerror or error}.") from error
    except LudusError as error:
        raise ConfigError(f"{file} names {asset}: {error}") from error
    if size > _MOST_ASSET_BYTES:
        raise ConfigError(f"{file} names {asset}, which has over {_MOST_ASSET_BYTES // 10**6} MB.")
