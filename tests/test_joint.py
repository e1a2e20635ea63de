"""Policy, critics and reward learned together from recorded episodes that have one return each."""

import io
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import ludus
import replay_envs
from ludus.data import DataConfig, read_episodes
from ludus.envs.vec import VecEnv
from ludus.errors import CheckpointError, DataError
from ludus.rewards import judge, label
from ludus.rewards import load as load_reward
from ludus.show.console import Console
from stopped_runs import StopAfter, assert_same_run, resume

Settings = dict[str, Any]
SMALL: Settings = {
    "policy.hidden": (32, 32), "replay.batch_size": 64, "replay.learning_rate": 2e-3,
    "replay.gamma": 0.5, "replay.train_batches": 50, "reward.method": "rrd", "reward.hidden": (32, 32),
    "reward.rrd_batch_size": 64, "reward.rrd_sample_size": 4, "reward.learning_rate": 2e-3,
    "eval.episodes": 32, "eval.stochastic": False, "eval.final_episodes": 0, "log.report": False,
    "log.tensorboard": False,
}  # fmt: skip

IMAGES: Settings = {
    "policy.image_features": 16,
    "reward.image_features": 16,
    "reward.augment": 0,
    "replay.shift": 0,
}


def record_at_random(env: VecEnv, path: Path, rounds: int) -> Path:
    """Random moves, in LIBERO's rows as robomimic lays them out; the rewards of an episode are paid at its end."""
    moves, obs = torch.Generator().manual_seed(7), env.reset(3)
    with h5py.File(path, "w") as file:
        for k in range(rounds):
            seen, actions, paid = [obs], [], torch.zeros(env.num_rows)
            for _ in range(env.max_steps):
                actions.append(torch.rand((env.num_rows, 1), generator=moves) * 2 - 1)
                env.begin_step(actions[-1])
                step = env.end_step()
                obs, paid = step.obs, paid + step.reward
                seen.append(step.final_obs)
            for row in range(env.num_rows):
                demo = file.create_group(f"data/demo_{k * env.num_rows + row}")
                frames = torch.stack([x[row] for x in seen]).numpy()
                demo["obs/what"], demo["next_obs/what"] = frames[:-1], frames[1:]
                demo["actions"] = torch.stack([a[row] for a in actions]).numpy()
                demo["rewards"] = np.zeros(env.max_steps, np.float32)
                demo["rewards"][-1] = float(paid[row])
                demo["dones"], demo.attrs["num_samples"] = np.zeros(env.max_steps), env.max_steps
        file["data"].attrs["env_args"] = "{}"
    return path


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    env = replay_envs.make_match(32, evaluation=True)
    return record_at_random(env, tmp_path_factory.mktemp("data") / "numbers.hdf5", 2)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Too few to learn from, and quickly read."""
    env = replay_envs.make_match(6, evaluation=True)
    return record_at_random(env, tmp_path_factory.mktemp("few") / "numbers.hdf5", 1)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    env = replay_envs.make_seen_match(64, evaluation=True)
    return record_at_random(env, tmp_path_factory.mktemp("data") / "images.hdf5", 2)


def train(data: Path, folder: Path, batches: int, *callbacks: ludus.Callback, **settings: Any) -> ludus.Run:
    algo, output = settings.pop("algo", "td3"), settings.pop("output", None)
    seen = data.stem == "images"
    env = "vec:replay_envs:make_seen_match" if seen else "vec:replay_envs:make_match"
    overrides = SMALL | (IMAGES if seen else {}) | ({"flash.critic_width": 32} if algo == "flash-sac" else {})
    overrides |= {"data": str(data), "loop.total_steps": batches, "eval.every": batches}
    overrides |= {name.replace("__", "."): value for name, value in settings.items()}
    console = Console("quiet") if output is None else Console("plain", output)
    return ludus.train(env, folder, callbacks, console, algo=algo, overrides=overrides)


def mean_return(run: ludus.Run) -> float:
    return float(run.metrics["eval/mean_reward"].values[-1])


HOW: dict[str, Settings] = {
    "td3": {"replay__advantage": 3.0},
    "td3, critic": {"replay__bc": 2.5, "replay__advantage": 1.0},
    "sac": {"algo": "sac", "batches": 600, "sac__alpha": 0.1, "replay__advantage": 3.0},
    "sac, critic": {"algo": "sac", "batches": 600, "sac__alpha": 0.1, "replay__bc": 10.0},
    "flash": {"algo": "flash-sac", "replay__advantage": 3.0},
    "flash, critic": {"algo": "flash-sac", "replay__advantage": 1.0, "replay__bc": 2.5},
}


@pytest.mark.parametrize("how", HOW)
def test_what_random_moves_were_worth_is_learned_from_returns_and_followed(
    how: str, numbers: Path, tmp_path: Path
) -> None:
    """In 20 steps random moves cost 13, moves of 0 cost 10, and the best nothing."""
    settings = {"batches": 300} | HOW[how]
    assert mean_return(train(numbers, tmp_path / "run", **settings)) > -7.0


def test_imitation_of_all_episodes_does_not_learn_it(numbers: Path, tmp_path: Path) -> None:
    assert mean_return(train(numbers, tmp_path / "run", 400, replay__bc=1e-3)) < -8.0


def test_a_policy_critics_and_a_reward_learn_together_from_images(images: Path, tmp_path: Path) -> None:
    """In 10 steps moves of 0 cost 5."""
    run = train(images, tmp_path / "run", 1000, replay__advantage=3.0, replay__gamma=0.0)
    assert mean_return(run) > -4.0


@pytest.mark.parametrize(("data", "algo"), [("few", "sac"), ("few", "flash-sac"), ("images", "td3")])
def test_a_stopped_run_goes_on_bit_for_bit(
    data: str, algo: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    file = request.getfixturevalue(data)
    small = {"algo": algo, "replay__train_batches": 4, "replay__advantage": 1.0, "replay__bc": 0.5}
    small |= {"replay__shift": 1, "reward__augment": 1} if data == "images" else {}
    straight = train(file, tmp_path / "straight", 24, loop__iterations=3, **small)
    folder = train(file, tmp_path / "run", 24, StopAfter(4), loop__iterations=3, **small)
    assert not (folder / "final").exists()
    resume(folder)
    assert_same_run(folder, straight)


def test_the_plan_says_what_is_learned_and_the_reward_labels_the_file_it_came_from(
    few: Path, tmp_path: Path
) -> None:
    """The network knows observations by the names of the file."""
    output = io.StringIO()
    run = train(few, tmp_path / "run", 8, output=output, replay__train_batches=4, replay__advantage=1.0)
    told = output.getvalue()
    assert "rrd 16 × 4 steps" in told
    assert "imitation by advantage (weight 1)" in told
    assert "reward, critics and policy learn together, from one return an episode; the reward sees what" in told
    assert "R_loss" in told
    labelled, episodes = label(str(few), run)
    assert episodes == 6
    model = load_reward(run)
    before, after = (
        next(read_episodes(DataConfig(str(path), reward=name)))
        for path, name in ((few, "rewards"), (labelled, "learned_rewards"))
    )
    np.testing.assert_array_equal(judge(model, before)["reward"], after.reward)


def test_a_file_of_other_sizes_is_not_labelled(few: Path, tmp_path: Path) -> None:
    run = train(few, tmp_path / "run", 8, replay__train_batches=4, replay__advantage=1.0)
    for key, width, message in (
        ("actions", 2, "actions are 2 numbers; the reward of .* was learned from 1 numbers"),
        ("obs/what", 3, r"what is 3 numbers; the reward of .* was learned from \d+"),
    ):
        other = tmp_path / f"{width}.hdf5"
        other.write_bytes(few.read_bytes())
        with h5py.File(other, "r+") as file:
            for demo in file["data"].values():
                for name in (key, key.replace("obs/", "next_obs/")):
                    rows = len(demo["actions"])
                    demo.pop(name, None)
                    demo[name] = np.zeros((rows, width))
        with pytest.raises(DataError, match=message):
            label(str(other), run)


def test_other_episodes_of_the_same_length_and_return_are_not_gone_on_with(few: Path, tmp_path: Path) -> None:
    data = tmp_path / "numbers.hdf5"
    data.write_bytes(few.read_bytes())
    folder = train(data, tmp_path / "run", 24, StopAfter(4), loop__iterations=3, replay__train_batches=4)
    with h5py.File(data, "r+") as file:
        file["data/demo_2/actions"][3] += 0.01
    with pytest.raises(CheckpointError, match="not those this run began with"):
        ludus.resume(folder, console=Console("quiet"))
