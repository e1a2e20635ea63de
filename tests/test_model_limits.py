"""A stranger's model is read as data: what would end the process or fill the memory is refused with a sentence."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from ludus.envs.bodies import find_body
from ludus.envs.bodies.model_limits import refuse_harm
from ludus.errors import ConfigError

LEG = '<body name="leg"><joint name="knee"/><geom type="sphere" size="0.1"/></body>'
ROBOT = f'<body name="root"><freejoint/><geom type="sphere" size="0.1"/>{LEG}</body>'


def model(folder: Path, more: str = "", inside: str = "", name: str = "robot.xml") -> Path:
    file = folder / name
    file.write_text(f"<mujoco>{more}<worldbody>{ROBOT}{inside}</worldbody></mujoco>")
    return file


def refused(file: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        refuse_harm(file)
    with pytest.raises(ConfigError):
        find_body(str(file))
    return str(caught.value)


@pytest.mark.parametrize(
    "body", ["humanoid", pytest.param("g1", marks=pytest.mark.skipif(find_spec("mjlab") is None, reason="no G1"))]
)
def test_the_bodies_of_ludus_pass(body: str) -> None:
    assert find_body(body).joints


def test_a_scene_that_includes_its_robot_passes(tmp_path: Path) -> None:
    model(tmp_path)
    scene = tmp_path / "scene.xml"
    scene.write_text('<mujoco><include file="robot.xml"/><worldbody><light pos="0 0 3"/></worldbody></mujoco>')
    refuse_harm(scene)


@pytest.mark.parametrize(
    ("more", "inside", "told"),
    [
        ('<asset><model name="x" file="robot.xml"/></asset>', "", "<model>"),  # MuJoCo 3.17 dies of it
        ('<asset><hfield name="h" nrow="100000" ncol="100000" size="1 1 1 1"/></asset>', "", "<hfield>"),
        ('<extension><plugin plugin="mujoco.elasticity.cable"/></extension>', "", "<extension>"),
        ("", '<replicate count="1000000"><geom size="1"/></replicate>', "<replicate>"),
        ("", '<composite type="grid" count="1000 1000 1" spacing="1"><geom/></composite>', "<composite>"),
        ("", '<flexcomp name="f" type="grid" count="200 200 200" spacing="1 1 1" mass="1"/>', "<flexcomp>"),
        ('<size nuser_body="100000000"/>', "", "nuser_body"),
        ('<size memory="1000G"/>', "", "memory"),
        ('<custom><numeric name="n" size="2000000000"/></custom>', "", "size of <numeric>"),
        ('<asset><texture name="t" type="2d" builtin="flat" width="100000" height="2"/></asset>', "", "width"),
        ('<sensor><user name="u" dim="1000000000"/></sensor>', "", "dim of <user>"),
        ('<asset><mesh name="m" builtin="supertorus" params="3000 1 1 1 1"/></asset>', "", "that MuJoCo makes"),
        ('<size nuser_geom="100000"/>', "", "nuser_geom"),
        ('<size nkey="100000"/>', "", "nkey"),
        ('<compiler><lengthrange mode="all" inttotal="1000"/></compiler>', "", "<lengthrange>"),
        ('<sensor><contact geom1="a" num="10000000"/></sensor>', "", "num of <contact>"),
        ("", '<camera name="c" resolution="640 100000"/>', "resolution of <camera>"),
        ('<include file="robot.xml"/>', "", "itself"),
        ('<include file="/dev/zero"/>', "", "/dev/zero"),
        ('<asset><mesh name="m" file="/dev/zero"/></asset>', "", "/dev/zero"),
        ("", "<body>" * 200 + "</body>" * 200, "inside each other"),
        ("", "<geom/>" * 100_001, "100,000 elements"),
        ("<worldbody>", "", "is not XML"),
    ],
)
def test_what_no_robot_needs_is_refused(tmp_path: Path, more: str, inside: str, told: str) -> None:
    assert told in refused(model(tmp_path, more, inside))


def test_other_kinds_of_models_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "robot.xml"
    file.write_text('<robot name="r"><link name="base"/></robot>')
    assert "begins with <robot>" in refused(file)


def test_entities_are_refused_before_they_grow(tmp_path: Path) -> None:
    file = tmp_path / "robot.xml"
    file.write_text('<!DOCTYPE m [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><mujoco model="&b;"/>')
    assert "entities" in refused(file)


@pytest.mark.parametrize("compiler", ["", '<compiler meshdir="parts"/>', '<compiler assetdir="parts"/>'])
def test_a_pipe_for_a_mesh_is_not_waited_for(tmp_path: Path, compiler: str) -> None:
    folder = tmp_path / "parts" if compiler else tmp_path
    folder.mkdir(exist_ok=True)
    os.mkfifo(folder / "part.stl")
    file = model(tmp_path, f'{compiler}<asset><mesh name="m" file="part.stl"/></asset>')
    assert "pipe" in refused(file)


def test_a_missing_mesh_is_mujocos_to_tell(tmp_path: Path) -> None:
    file = model(tmp_path, '<asset><mesh name="m" file="part.stl"/></asset>')
    refuse_harm(file)
    with pytest.raises(ConfigError, match=r"part\.stl"):
        find_body(str(file))


def included(folder: Path, more: str = "") -> Path:
    """A model whose robot, and what that includes, lie in another folder."""
    (folder / "sub").mkdir()
    model(folder / "sub", '<include file="parts.xml"/>')
    (folder / "sub" / "parts.xml").write_text(f"<mujoco>{more}</mujoco>")
    scene = folder / "scene.xml"
    scene.write_text('<mujoco><include file="sub/robot.xml"/></mujoco>')
    return scene


def test_what_an_included_file_includes_may_lie_beside_it(tmp_path: Path) -> None:
    refuse_harm(included(tmp_path))


def test_assets_beside_an_included_file_are_looked_at_too(tmp_path: Path) -> None:
    scene = included(tmp_path, '<asset><mesh name="m" file="part.stl"/></asset>')
    os.mkfifo(tmp_path / "sub" / "part.stl")
    assert "pipe" in refused(scene)
