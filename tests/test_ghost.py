"""The humanoid and its ghost, drawn together; clips of motion on a page."""

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from humanoid_body import HUMANOID, JOINTS, load_body
from ludus.envs.bodies import find_body
from ludus.envs.humanoid.catalogue import shipped_folder
from ludus.envs.humanoid.clip import Clip, load_clip
from ludus.envs.humanoid.ghost import GHOST_COLOUR, ghost_model, ghost_qpos
from ludus.envs.humanoid.motions import MotionLibrary
from ludus.errors import LudusError
from ludus.motion_viewing import qpos_at, view_clips
from ludus.show.playback import Replay, replay_html


def _clip(name: str) -> Clip:
    return load_clip(shipped_folder() / f"{name}.npz")


def test_ghost_follows_the_body_in_the_positions() -> None:
    model = ghost_model(HUMANOID)
    assert (model.nq, model.nv, model.nu) == (70, 68, 28)
    for i, joint in enumerate(("root", *JOINTS)):
        own, ghost = model.joint(joint), model.joint(f"ghost_{joint}")
        assert ghost.qposadr[0] == own.qposadr[0] + 35, i


def test_ghost_is_translucent_and_the_body_is_not() -> None:
    model = ghost_model(HUMANOID)
    for geom in range(model.ngeom):
        if model.geom(geom).name.startswith("ghost_"):
            assert model.geom_matid[geom] == -1
            np.testing.assert_allclose(model.geom_rgba[geom], GHOST_COLOUR, atol=1e-6)
        else:
            assert model.mat_rgba[model.geom_matid[geom], 3] == 1


def test_ghost_touches_nothing() -> None:
    """Over the body, in the floor and falling through it: the contacts are the body's alone, and so is its way."""
    alone, both = load_body(), ghost_model(HUMANOID)
    data, together = mujoco.MjData(alone), mujoco.MjData(both)
    start = qpos_at(_clip("stroll"), 0.0)
    data.qpos[:], together.qpos[:] = start, ghost_qpos(start, start)
    for model, state in ((alone, data), (both, together)):
        state.ctrl[:] = start[7:]
        mujoco.mj_forward(model, state)
    assert together.ncon == data.ncon > 0
    for _ in range(60):
        mujoco.mj_step(alone, data)
        mujoco.mj_step(both, together)
        assert together.ncon == data.ncon
    # Not to the last digit: the solver's few iterations count over both. But the ghost fell freely.
    np.testing.assert_allclose(together.qpos[:35], data.qpos, atol=0.05)
    assert together.qpos[37] < -1.0


def test_ghost_can_stand_beside() -> None:
    body, ghost = np.zeros((4, 35)), np.ones((4, 35))
    both = ghost_qpos(body, ghost, beside=1.2)
    assert both.shape == (4, 70)
    assert (both[:, 36] == 2.2).all()
    assert (ghost == 1).all()  # the caller's own are left alone


def test_page_draws_body_and_ghost() -> None:
    pytest.importorskip("mjviser")
    clip, replay = _clip("stroll"), Replay(ghost_model(HUMANOID), 1 / 30)
    poses = [qpos_at(clip, time / 30) for time in range(5)]
    replay.add_episode([{"qpos": ghost_qpos(pose, pose, 1.2)} for pose in poses], "with its ghost")
    page = replay_html(replay, "ghost")
    assert "<title>ghost</title>" in page
    assert "default-src 'none'" in page


def test_translucent_bodies_are_sent_as_such() -> None:
    pytest.importorskip("mjviser")
    from ludus.show.mujoco_scene import MujocoScene, browser_server

    with browser_server() as server:
        scene = MujocoScene(server, ghost_model(HUMANOID))
        handles: dict[str, Any] = {group.handle.name: group.handle for group in scene._scene._mesh_groups}
    ghosts = [handle for name, handle in handles.items() if "ghost_" in name]
    assert len(ghosts) >= 10
    assert all(handle.opacity == pytest.approx(GHOST_COLOUR[3], abs=0.01) for handle in ghosts)
    assert not any(hasattr(handle, "opacity") for name, handle in handles.items() if "ghost_" not in name)


def test_clips_are_written_to_a_page(tmp_path: Path) -> None:
    pytest.importorskip("mjviser")
    page = tmp_path / "new" / "clips.html"
    view_clips([_clip("jog"), _clip("bow")], port=0, seconds=None, html=page)
    assert "<title>jog, bow</title>" in page.read_text(encoding="utf-8")


def test_clips_are_shown_live(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mjviser")
    view_clips([_clip("jog"), _clip("bow")], port=0, seconds=0.3, html=None)
    assert "http://localhost:" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["stroll", "turn"])
def test_a_viewed_loop_is_where_training_has_it(name: str) -> None:
    clip = _clip(name)
    library, frames = MotionLibrary([clip], 5 * clip.duration), clip.frames - 1
    for frame in (0, 7, frames, 2 * frames + 11, 5 * frames):
        reference = library.at(torch.zeros(1, dtype=torch.int64), torch.tensor([frame / clip.fps]))
        pose, same = qpos_at(clip, frame / clip.fps), reference.qpos[0].numpy()
        np.testing.assert_allclose(np.delete(pose, range(3, 7)), np.delete(same, range(3, 7)), atol=1e-4)
        assert abs(pose[3:7] @ same[3:7]) == pytest.approx(1, abs=1e-6)


def test_looping_clip_goes_on_where_it_ended_and_another_stops() -> None:
    jog, bow = _clip("jog"), _clip("bow")
    assert qpos_at(jog, 3 * jog.duration)[0] == pytest.approx(3 * jog.root_pos[-1, 0], abs=1e-4)
    np.testing.assert_allclose(qpos_at(bow, 99.0)[7:], bow.joint_pos[-1])
    with pytest.raises(LudusError, match="no clip"):
        view_clips([], port=0, seconds=None, html=None)


def test_a_ghost_has_sites_of_any_material(tmp_path: Path) -> None:
    (tmp_path / "robot.xml").write_text(
        """<mujoco><asset><material name="m"/></asset><worldbody><body name="a" pos="0 0 1"><freejoint/>
        <geom size="0.1" material="m"/><site name="s" material="m"/><body name="b"><joint name="j"/>
        <geom size="0.1"/></body></body></worldbody><actuator><position joint="j" kp="5"/></actuator></mujoco>"""
    )
    model = ghost_model(find_body(str(tmp_path / "robot.xml")))
    assert model.site("ghost_s").matid[0] == -1
