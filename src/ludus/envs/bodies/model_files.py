"""A body's model as files that plain MuJoCo loads: with motors, floor and physics as Ludus simulates it."""

from pathlib import Path
from xml.etree import ElementTree

import mujoco

from ludus.envs.bodies.body import Body
from ludus.envs.bodies.model_limits import FILES, MOST_ASSET_BYTES
from ludus.errors import LudusError, plain_text
from ludus.files import read_bounded, write_whole


def write_model(body: Body, file: Path) -> None:
    """MJCF, and meshes and pictures in a folder of the same name beside it.

    MuJoCo writes six digits: the model is the same but for that rounding.
    """
    spec = body.new_spec()
    spec.compile()
    tree = ElementTree.fromstring(spec.to_xml())
    try:
        _bring_assets(tree, spec, file.with_suffix(""))
        write_whole(file, ElementTree.tostring(tree, encoding="unicode"))
        mujoco.MjModel.from_xml_path(str(file))
    except OSError as error:
        raise LudusError(f"{file} cannot be written: {error.strerror or error}.") from error
    except ValueError as error:
        raise LudusError(f"MuJoCo cannot read {file} again: {plain_text(str(error), 500)}") from error


def _bring_assets(tree: ElementTree.Element, spec: mujoco.MjSpec, folder: Path) -> None:
    """Copy the files that a model names, and name the copies."""
    places = {"mesh": spec.meshdir, "skin": spec.meshdir, "texture": spec.texturedir, "hfield": spec.texturedir}
    copies: dict[Path, str] = {}
    for asset in tree.iterfind("asset/*"):
        for name in FILES:
            if asset.get(name):
                source = Path(spec.modelfiledir, places.get(asset.tag, ""), asset.attrib[name])
                if source not in copies:
                    copies[source] = f"{len(copies)}_{source.name}"
                    folder.mkdir(parents=True, exist_ok=True)
                    write_whole(folder / copies[source], read_bounded(source, MOST_ASSET_BYTES))
                asset.set(name, f"{folder.name}/{copies[source]}")
    for compiler in tree.iterfind("compiler"):
        for name in ("meshdir", "texturedir", "assetdir"):
            compiler.attrib.pop(name, None)
