"""What a model's file may hold, looked at before MuJoCo reads it.

MuJoCo trusts its files: some end the process, others take all memory for a line of text. Ludus reads what
strangers send, so whatever is not plain bodies, joints, geoms, meshes and motors of a usual size is refused here.
"""

import math
import os
import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from ludus.errors import ConfigError, LudusError, plain_text
from ludus.files import open_regular, read_bounded

FILES = ("file", "fileright", "fileleft", "fileup", "filedown", "filefront", "fileback")  # attributes of assets
_MOST_BYTES, MOST_ASSET_BYTES = 50_000_000, 500_000_000
_MOST_ELEMENTS, _DEEPEST, _MOST_INCLUDED = 100_000, 100, 100
# They make many parts of few words, run other code, read other models or simulate for as long as they say.
_REFUSED = frozenset(
    ("attach", "model", "replicate", "composite", "flexcomp", "flex", "hfield", "skin", "extension", "plugin",
     "lengthrange")
)  # fmt: skip
_MOST_NUMBERS = 100_000  # of what <size> asks for
_MOST_OF_EACH = 100  # numbers of the user's own, of every element, and keyframes, of every joint
_MOST = {
    ("size", "memory"): 2**30,
    ("contact", "num"): 1_000,
    ("camera", "resolution"): 4_096,
    ("numeric", "size"): 1_000_000,
    ("texture", "width"): 8_192,
    ("texture", "height"): 8_192,
    ("user", "dim"): 10_000,
}
_MOST_TEXTURE_BYTES = 1_000_000_000  # of all textures as MuJoCo holds them
_FOLDERS, _MOST_FOLDERS = ("meshdir", "texturedir", "assetdir"), 10
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50, "E": 2**60}


def refuse_harm(file: Path) -> None:
    """Raise a ConfigError where the file, or one that it includes, is not what a robot needs."""
    folders, assets, texels = {""}, set[str](), 0
    beside = {file.parent}  # where MuJoCo looks for assets: beside the model, and beside what it includes
    for count, (part, element) in enumerate(_all_elements(file)):
        beside.add(part.parent)
        if count == _MOST_ELEMENTS:
            raise ConfigError(f"{file} has more than {_MOST_ELEMENTS:,} elements; a robot has fewer.")
        if count == 0 and element.tag != "mujoco":
            tag = plain_text(str(element.tag), 100)
            raise ConfigError(f"{file} is not MJCF: it begins with <{tag}>. MuJoCo's 'compile' converts URDF.")
        _check(element, part)
        texels += _drawn_texels(element)
        if element.tag == "compiler":
            folders |= {element.attrib[name] for name in _FOLDERS if name in element.attrib}
        elif element.tag != "include":
            assets |= {element.attrib[name] for name in FILES if name in element.attrib}
    if len(folders) > _MOST_FOLDERS:
        raise ConfigError(
            f"{file} names more than {_MOST_FOLDERS - 1} folders of meshes and textures; take fewer."
        )
    # In which folder MuJoCo looks depends on the order of elements, and it may leave out an asset's own: all are
    # looked at.
    names = {name for asset in assets for name in _names(asset)}
    paths = {base / folder / name for base in beside for folder in folders for name in names}
    texels += sum(_check_asset(file, path) for path in sorted(paths))
    if 4 * texels > _MOST_TEXTURE_BYTES:
        raise ConfigError(f"{file}: its textures take {4 * texels / 1e9:.1f} GB; take smaller ones.")


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
                waiting.append(_included(file, part, element.get("file", "")))
            yield part, element


def _included(file: Path, part: Path, name: str) -> Path:
    """Beside the model, or else beside the file that includes it, as MuJoCo looks."""
    return file.parent / name if os.path.lexists(file.parent / name) else part.parent / name


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
    if "{" in str(element.tag):  # MuJoCo knows no namespaces: what is no <include> here would be one there
        raise ConfigError(f"{file} has <{tag}>, an element of an XML namespace: take xmlns out.")
    if element.tag in _REFUSED:
        raise ConfigError(
            f"{file} has <{tag}>. A body is read from bodies, joints, geoms, meshes and motors alone: write out "
            "what it makes, or take it out."
        )
    if element.tag == "mesh" and "builtin" in element.attrib:
        raise ConfigError(f"{file} has a mesh that MuJoCo makes, of any size: write it to a file, or take it out.")
    for name, value in element.attrib.items():
        most = _most(str(element.tag), name)
        if most < math.inf and _number(value) > most:
            raise ConfigError(f"{file}: {name} of <{tag}> is {plain_text(value, 40)}; at most {most:,} is read.")


def _most(tag: str, name: str) -> float:
    """Of a number by which memory is taken; without end of others."""
    if tag == "size" and name != "memory":
        return _MOST_OF_EACH if name.startswith("nuser_") or name == "nkey" else _MOST_NUMBERS
    return _MOST.get((tag, name), math.inf)


def _number(value: str) -> float:
    """As MuJoCo understands it, of several the largest; 0 where it will say itself what is wrong."""
    found = re.findall(r"(?:^|\s)\+?(\d{1,30})\s*([KMGTPE]?)(?=\s|$)", value)
    return max((int(digits) * _UNITS[unit] for digits, unit in found), default=0)


def _drawn_texels(element: Element) -> int:
    """Of a texture that MuJoCo draws itself."""
    if element.tag != "texture" or "builtin" not in element.attrib:
        return 0
    width, height = (int(_number(element.get(name, "0"))) for name in ("width", "height"))
    return width * height if element.get("type", "cube") == "2d" else 6 * width * max(width, height)


def _names(asset: str) -> set[str]:
    """With <compiler strippath="true"/> the last part alone counts."""
    return {asset, re.split(r"[/\\]", asset)[-1]}


def _check_asset(file: Path, asset: Path) -> int:
    """The texels of an image, else 0. A pipe would be waited for without end; a device has none.

    What is missing MuJoCo tells itself.
    """
    try:
        if not asset.exists():
            return 0
        with open_regular(asset) as content:
            size = content.seek(0, 2)
            content.seek(0)
            head = content.read(24)
    except (OSError, ValueError) as error:
        told = (error.strerror if isinstance(error, OSError) else "") or plain_text(str(error), 100)
        raise ConfigError(f"{file} names {plain_text(str(asset), 200)}, which cannot be read: {told}.") from error
    except LudusError as error:
        raise ConfigError(f"{file} names {asset}: {error}") from error
    if size > MOST_ASSET_BYTES:
        raise ConfigError(f"{file} names {asset}, which has over {MOST_ASSET_BYTES // 10**6} MB.")
    if not head.startswith(b"\x89PNG"):
        return 0  # an image of another kind, or a mesh, is no larger than its file
    return int.from_bytes(head[16:20], "big") * int.from_bytes(head[20:24], "big")
