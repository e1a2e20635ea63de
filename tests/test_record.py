"""Recording our own task: what is in the file, that it is read back as it was, and that it can be learned from."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import ludus
import ludus.recording as recordings
import warm_python
from ludus.data import DataConfig, Episode, read_episodes, scan
from ludus.data.writing import LiberoWriter
from ludus.envs.kuka.behaviour import NEVER, Behaviour
from ludus.envs.kuka.config import KukaConfig
from ludus.envs.kuka.task import CUBE_ON_PAD, KukaPickPlace
from ludus.errors import ConfigError, DataError
from ludus.recording import LANGUAGE, RecordConfig, axis_angle, record
from ludus.show.console import Console

EPISODES = 24


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(
        "scripted", tmp_path_factory.mktemp("data") / "kuka.hdf5", RecordConfig(episodes=EPISODES, seed=3)
    )


@pytest.fixture(scope="module")
def episodes(file: Path) -> list[Episode]:
    return list(read_episodes(DataConfig(str(file))))


def test_counts_and_attributes(file: Path) -> None:
    with h5py.File(file) as opened:
        data = opened["data"]
        demos = [data[f"demo_{k}"] for k in range(EPISODES)]
        assert len(data) == data.attrs["num_demos"] == EPISODES
        assert data.attrs["total"] == sum(len(demo["actions"]) for demo in demos)
        assert json.loads(data.attrs["problem_info"])["language_instruction"] == LANGUAGE
        assert json.loads(data.attrs["env_args"])["env_name"] == "kuka-pick-place"
        assert sum(bool(demo.attrs["success"]) for demo in demos) == EPISODES // 2
        for demo in demos:
            rows, success = len(demo["actions"]), bool(demo.attrs["success"])
            assert demo.attrs["num_samples"] == rows
            assert demo["rewards"][:].tolist() == [0.0] * (rows - 1) + [float(success)]
            assert {key: demo["obs"][key].shape for key in demo["obs"]} == {
                "ee_states": (rows, 6),
                "gripper_states": (rows, 2),
                "joint_states": (rows, 7),
                "state": (rows, 34),
            }
            assert np.array_equal(demo.attrs["init_state"], demo["states"][0])
            assert demo.attrs["model_file"].startswith("<!-- A KUKA")
        names = [name.decode() for name in opened["mask/success"]]
        assert [demo.name.rpartition("/")[2] for demo in demos if demo.attrs["success"]] == names


def test_the_reader_gives_what_was_recorded(file: Path, episodes: list[Episode]) -> None:
    with h5py.File(file) as opened:
        for episode in episodes:
            demo = opened["data"][episode.name]
            for key in demo["obs"]:
                assert np.array_equal(episode.obs[key], demo["obs"][key][:])
            assert np.array_equal(episode.action, demo["actions"][1:])
            assert episode.true_reward is not None
            assert np.array_equal(episode.true_reward, demo["shaped_rewards"][1:])
            assert episode.success == bool(episode.episode_return)
            assert not (episode.terminated and episode.success)  # only a cube that falls ends an episode
            assert episode.language == LANGUAGE


def test_a_recording_can_be_replayed_from_its_first_state(file: Path) -> None:
    """obs[t] is what follows actions[t]; the states precede them."""
    env = KukaPickPlace(KukaConfig(), 1, 1, evaluation=True)
    with h5py.File(file) as opened:
        demo = opened["data/demo_0"]
        env.reset(0)
        state = torch.from_numpy(demo.attrs["init_state"])
        env.sim.field("qpos")[0], env.sim.field("qvel")[0] = state[1:17], state[17:32]
        env.sim.field("mocap_pos")[0, 0] = state[32:35]
        env.memory["goal"][0, :2] = state[32:34]
        env.sim.forward()
        for t, action in enumerate(demo["actions"][:]):
            step = env.step(torch.from_numpy(action)[None])
            seen = step.final_obs if bool(step.done[0]) else step.obs
            assert np.allclose(seen[0], demo["obs/state"][t], atol=1e-4), t
        assert bool(step.metrics["success"][0]) == bool(demo.attrs["success"])
    env.close()


def test_the_hidden_reward_rises_in_successes_and_not_in_failures(episodes: list[Episode]) -> None:
    ends: dict[bool, list[float]] = {True: [], False: []}
    rises = []
    for episode in episodes:
        assert episode.true_reward is not None
        assert episode.true_reward.min() >= 0
        assert episode.true_reward.max() <= 1.01
        ends[bool(episode.success)].append(episode.true_reward[-1])
        if episode.success:
            rises.append(episode.true_reward[-1] - episode.true_reward[0])
    assert min(rises) > 0.3
    assert min(ends[True]) > 0.9
    assert np.mean(ends[False]) < 0.7
    assert np.std(ends[False]) > 0.02, "failures differ"


def test_a_success_is_a_cube_on_the_pad_and_noise_does_not_tell(episodes: list[Episode]) -> None:
    for episode in episodes:
        to_goal = episode.obs["state"][-1, 23:26]
        on_pad = bool((np.abs(to_goal) < (0.04, 0.04, 0.008)).all())
        assert on_pad or not episode.success
        if episode.success:
            assert episode.obs["state"][-1, 10] == pytest.approx(CUBE_ON_PAD, abs=0.01)
    jitter = {
        wanted: np.mean([np.abs(np.diff(e.action[:, :2], axis=0)).mean() for e in episodes if e.success is wanted])
        for wanted in (True, False)
    }
    assert jitter[True] > 0.5 * jitter[False]


def test_orientation_does_not_jump(episodes: list[Episode]) -> None:
    """The hand points down all the time, where an axis and its opposite mean the same."""
    for episode in episodes:
        assert np.abs(np.diff(episode.obs["ee_states"][:, 3:], axis=0)).max() < 0.5
    down = torch.tensor(
        [[1e-3, 1.0, 0.0, 0.0], [-1e-3, 1.0, 0.0, 0.0], [1e-3, -1.0, 0.0, 0.0]], dtype=torch.float64
    )
    assert (axis_angle(down)[:, 0] - torch.pi).abs().max() < 0.01


def test_the_same_seed_records_the_same(file: Path, tmp_path: Path) -> None:
    again = record("scripted", tmp_path / "again.hdf5", RecordConfig(episodes=EPISODES, seed=3))
    other = record("scripted", tmp_path / "other.hdf5", RecordConfig(episodes=EPISODES, seed=4))
    with h5py.File(file) as first, h5py.File(again) as second, h5py.File(other) as third:
        for k in range(EPISODES):
            for key in ("actions", "states", "obs/state", "shaped_rewards"):
                assert np.array_equal(first[f"data/demo_{k}/{key}"], second[f"data/demo_{k}/{key}"])
        assert not np.array_equal(first["data/demo_0/obs/state"][0], third["data/demo_0/obs/state"][0])


def test_any_share_of_successes(tmp_path: Path) -> None:
    for share, wanted in ((1.0, 6), (0.0, 0), (0.34, 2)):
        path = record("scripted", tmp_path / f"{share}.hdf5", RecordConfig(episodes=6, successes=share))
        assert sum(bool(e.success) for e in scan(DataConfig(str(path))).episodes) == wanted


def test_disturbances_pass_in_episodes_that_are_to_succeed() -> None:
    behaviour = Behaviour(lambda obs: torch.zeros(len(obs), 4), 1000, 0.1, seed=0)
    succeed = torch.arange(1000) % 2 == 0
    behaviour.begin(torch.arange(1000), succeed)
    assert (behaviour.stop[~succeed] == NEVER).all()
    assert (behaviour.stop[succeed] < 100).all()
    counts = torch.bincount(behaviour.kind[~succeed], minlength=6)
    assert counts[0] == 0
    assert counts[1:].min() > 60, "every kind of failure"


def test_images_are_upright_after_reading(tmp_path: Path) -> None:
    config = RecordConfig(episodes=2, images=48, seed=1)
    try:
        path = record("scripted", tmp_path / "seen.hdf5", config)
    except DataError as error:
        pytest.skip(str(error))
    with h5py.File(path) as file:
        stored = file["data/demo_0/obs/agentview_rgb"][:]
    (first, second) = read_episodes(DataConfig(str(path)))
    image = first.obs["agentview_rgb"]
    assert image.shape == (first.length + 1, 48, 48, 3)
    assert np.array_equal(image, stored[:, ::-1]), "stored as OpenGL draws, bottom row first"
    # The brown table is in the lower half, the white arm comes in from above.
    brown = (image[..., 0].astype(int) - image[..., 2] > 60).mean(axis=(0, 2))
    assert brown[24:].mean() > 3 * brown[:24].mean()
    assert image.std(axis=0).max() > 10, "something moves"
    assert {key for key in second.obs if key.endswith("_rgb")} == {"agentview_rgb", "eye_in_hand_rgb"}
    small = next(read_episodes(DataConfig(str(path), image_size=24)))
    assert small.obs["eye_in_hand_rgb"].shape[1:] == (24, 24, 3)


def test_without_opengl_a_sentence_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "disabled")
    with pytest.raises(DataError, match=r"No images can be drawn.*libegl1"):
        record("scripted", tmp_path / "seen.hdf5", RecordConfig(episodes=1, images=32))
    assert list(tmp_path.iterdir()) == []


def test_a_policy_that_cannot_succeed_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "scripted_action", lambda obs: torch.zeros(len(obs), 4))
    monkeypatch.setattr(recordings, "_MOST_TRIES", 1)
    with pytest.raises(DataError, match=r"After \d+ episodes 1 successes and 0 failures are still missing"):
        record("scripted", tmp_path / "never.hdf5", RecordConfig(episodes=2))
    assert list(tmp_path.iterdir()) == []


def test_the_policy_of_a_run(tmp_path: Path) -> None:
    quick = {
        "env.num_envs": 4,
        "ppo.horizon": 8,
        "ppo.minibatches": 2,
        "loop.total_steps": 64,
        "log.report": False,
    }
    quick |= {"eval.episodes": 2, "log.tensorboard": False}
    run = ludus.train("kuka-pick-place", tmp_path / "run", console=Console("quiet"), overrides=quick)
    path = record(str(run), tmp_path / "policy.hdf5", RecordConfig(episodes=4, successes=0.0))
    assert [e.success for e in read_episodes(DataConfig(str(path)))] == [False] * 4
    with h5py.File(path) as file:
        assert json.loads(file["data"].attrs["env_args"])["record"]["policy"] == "run"
    other = ludus.train("gym:CartPole-v1", tmp_path / "other", console=Console("quiet"), overrides=quick)
    with pytest.raises(ConfigError, match="no run of the KUKA task"):
        record(str(other), tmp_path / "other.hdf5")
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("image_size: 0", "image_size: 32"))
    with pytest.raises(ConfigError, match="acts on images, which 'ludus record' does not draw"):
        record(str(run), tmp_path / "pixels.hdf5", RecordConfig(episodes=1))


def test_wrong_settings(tmp_path: Path) -> None:
    for config, message in (
        (RecordConfig(episodes=0), "at least 1"),
        (RecordConfig(successes=1.5), "from 0 to 1"),
        (RecordConfig(noise=-1), "from 0 to 1"),
        (RecordConfig(images=4), "16 to 512"),
        (RecordConfig(seed=-1), "negative"),
    ):
        with pytest.raises(ConfigError, match=message):
            record("scripted", tmp_path / "x.hdf5", config)
    with pytest.raises(ConfigError, match=r"must end in \.hdf5"):
        record("scripted", tmp_path / "x.npz")
    with pytest.raises(DataError, match="no folder"):
        record("scripted", tmp_path / "none" / "x.hdf5")


def test_a_file_that_is_not_finished_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), LiberoWriter(tmp_path / "half.hdf5", {}, ""):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_the_command(tmp_path: Path) -> None:
    out = tmp_path / "kuka.hdf5"

    def run(*arguments: object) -> warm_python.Completed:
        return warm_python.run(warm_python.ludus_command("record", *arguments))

    done = run("scripted", "--episodes", 4, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "ludus data info" in done.stdout
    assert len(scan(DataConfig(str(out))).episodes) == 4
    for failed in (run("scripted", "--out", out), run(tmp_path / "no-run", "--out", tmp_path / "b.hdf5")):
        assert failed.returncode == 2
        assert "Traceback" not in failed.stderr
