"""Reading recorded data: files written here by hand with h5py, as their layouts say, and read back."""

import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import warm_python
from ludus.data import DataConfig, Episode, as_file_rows, read_episodes, scan
from ludus.data.images import shrink
from ludus.data.info import describe
from ludus.data.writing import copy_with_reward
from ludus.errors import DataError

LANGUAGE = "put the bowl on the stove"
T = 7


# Files by hand ------------------------------------------------------------------------------------
def picture(t: int, size: int = 8) -> np.ndarray:
    """Upright: a bright sky on top, and the time in its blue."""
    image = np.zeros((size, size, 3), np.uint8)
    image[: size // 2, :, 0] = 200
    image[..., 2] = 10 + t
    return image


def write_libero_demo(data: h5py.Group, k: int, rows: int = T, success: bool = True) -> None:
    """Row t: action t, and what was seen after it; images as OpenGL draws them, bottom row first."""
    demo = data.create_group(f"demo_{k}")
    obs = demo.create_group("obs")
    obs["agentview_rgb"] = np.stack([picture(t + 1)[::-1] for t in range(rows)])
    obs["eye_in_hand_rgb"] = np.stack([picture(t + 51)[::-1] for t in range(rows)])
    obs["gripper_states"] = np.full((rows, 2), 100.0 * k) + np.arange(rows)[:, None]
    obs["joint_states"] = np.random.default_rng(k).normal(size=(rows, 7))
    obs["ee_states"] = np.random.default_rng(k + 100).normal(size=(rows, 6))
    demo["actions"] = np.tile(np.arange(rows)[:, None] / 100, (1, 7))
    rewards = np.zeros(rows, np.uint8)
    rewards[-1] = success
    demo["rewards"], demo["dones"] = rewards, rewards
    demo["states"] = np.zeros((rows, 5))
    demo.attrs["num_samples"] = rows
    demo.attrs["model_file"] = "<mujoco/>"
    demo.attrs["init_state"] = np.zeros(5)


def write_libero(path: Path, demos: int = 3, rows: int = T, failures: int = 0) -> Path:
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        for k in range(demos):
            write_libero_demo(data, k, rows, success=k >= failures)
        data.attrs["env_args"] = json.dumps({"env_name": "Libero_Kitchen"})
        data.attrs["problem_info"] = json.dumps({"language_instruction": LANGUAGE})
        data.attrs["num_demos"], data.attrs["total"] = demos, demos * rows
    return path


def write_robomimic(path: Path, next_obs: bool) -> Path:
    with h5py.File(path, "w") as file:
        for k in range(2):
            demo = file.create_group(f"data/demo_{k}")
            frames = np.arange(T + 1, dtype=np.float64)[:, None] + 10 * k
            demo["obs/object"] = frames[:-1]
            demo["obs/agentview_image"] = np.stack([picture(t) for t in range(T)])
            if next_obs:
                demo["next_obs/object"] = frames[1:]
                demo["next_obs/agentview_image"] = np.stack([picture(t + 1) for t in range(T)])
            demo["actions"] = np.arange(T)[:, None] / 10
            demo["rewards"] = np.arange(T, dtype=float)
            demo["dones"] = np.zeros(T)
            demo.attrs["num_samples"] = T
        file["mask/train"] = np.array([b"demo_1"])
        file["data"].attrs["env_args"] = "{}"
    return path


def write_minari(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        for k in (0, 1, 10, 2):
            episode = file.create_group(f"episode_{k}")
            episode["observations/position"] = np.arange(T + 1, dtype=np.float64)[:, None] * [1.0, 2.0]
            episode["observations/inner/speed"] = np.arange(T + 1, dtype=np.float32)
            episode["actions"] = np.full(T, k % 3)
            episode["rewards"] = np.full(T, 0.5)
            episode["terminations"] = np.arange(T) == (T - 1 if k == 1 else T)
            episode["truncations"] = np.arange(T) == (T if k == 1 else T - 1)
            episode["infos/success"] = np.full(T + 1, k == 1)
    path.with_name("metadata.json").write_text(
        json.dumps({"action_space": json.dumps({"type": "Discrete", "n": 5})})
    )
    return path


def write_d4rl(path: Path, next_obs: bool = False) -> Path:
    """Episodes of 4 steps (terminal), 3 (timeout) and 3 (cut off)."""
    with h5py.File(path, "w") as file:
        file["observations"] = np.arange(10, dtype=np.float32)[:, None]
        file["actions"] = np.arange(10, dtype=np.float32)[:, None] / 10
        file["rewards"] = np.arange(10, dtype=np.float32)
        file["terminals"], file["timeouts"] = np.arange(10) == 3, np.arange(10) == 6
        if next_obs:
            file["next_observations"] = np.arange(10, dtype=np.float32)[:, None] + 0.5
    return path


def episodes(path: Path | str, **settings: Any) -> list[Episode]:
    return list(read_episodes(DataConfig(path=str(path), **settings)))


# Layouts ------------------------------------------------------------------------------------------
def test_libero_by_hand_is_read_right(tmp_path: Path) -> None:
    found = episodes(write_libero(tmp_path / "task.hdf5", demos=12, failures=4))
    assert [e.name for e in found] == [f"demo_{k}" for k in range(12)]
    first, last = found[0], found[-1]
    assert first.length == T - 1
    assert {key: (a.shape, a.dtype.name) for key, a in first.obs.items()} == {
        "agentview_rgb": ((T, 8, 8, 3), "uint8"),
        "eye_in_hand_rgb": ((T, 8, 8, 3), "uint8"),
        "ee_states": ((T, 6), "float32"),
        "gripper_states": ((T, 2), "float32"),
        "joint_states": ((T, 7), "float32"),
    }
    # The frame after action t is row t, so action 1 leads from frame 0 to frame 1.
    for t in range(T):
        assert np.array_equal(first.obs["agentview_rgb"][t], picture(t + 1)), "upright, in time"
    assert np.allclose(first.action[:, 0], np.arange(1, T) / 100)
    assert first.action.dtype == first.reward.dtype == np.float32
    assert last.reward.tolist() == [0.0] * (T - 2) + [1.0]
    assert [e.success for e in found] == [False] * 4 + [True] * 8
    assert [e.episode_return for e in found] == [0.0] * 4 + [1.0] * 8
    assert last.terminated
    assert not first.terminated
    assert {e.language for e in found} == {LANGUAGE}
    assert (first.first_row, first.file_rows) == (1, T)


def test_conventions_can_be_overruled(tmp_path: Path) -> None:
    path = write_libero(tmp_path / "task.hdf5")
    (first, *_) = episodes(path, flip="no", action_shift="no")
    assert np.array_equal(first.obs["agentview_rgb"][0], picture(1)[::-1])
    assert np.allclose(first.action[:, 0], np.arange(T - 1) / 100)
    assert first.reward.tolist() == [0.0] * (T - 2) + [1.0], "the last reward is paid a step early"


@pytest.mark.parametrize("next_obs", [True, False])
def test_robomimic_with_and_without_next_obs(tmp_path: Path, next_obs: bool) -> None:
    path = write_robomimic(tmp_path / "low_dim.hdf5", next_obs)
    (only,) = episodes(path, filter="train")
    steps = T if next_obs else T - 1
    assert only.name == "demo_1"
    assert only.length == steps
    assert only.obs["object"][:, 0].tolist() == [10.0 + t for t in range(steps + 1)]
    assert np.array_equal(only.obs["agentview_image"][steps], picture(steps)), "already upright"
    assert np.allclose(only.action[:, 0], np.arange(steps) / 10)
    assert only.episode_return == sum(range(T))
    assert only.reward.tolist() == list(range(steps)), "time ran out: what was not seen is not paid"
    assert only.success is None
    assert only.language == ""


def test_minari_with_dicts_and_discrete_actions(tmp_path: Path) -> None:
    path = write_minari(tmp_path / "main_data.hdf5")
    found = episodes(path)
    assert [e.name for e in found] == ["episode_0", "episode_1", "episode_2", "episode_10"]
    assert found[0].obs["position"].shape == (T + 1, 2)
    assert found[0].obs["inner/speed"].shape == (T + 1, 1)
    assert found[0].action.dtype == np.int64
    assert [e.terminated for e in found] == [e.success for e in found] == [False, True, False, False]
    summary = scan(DataConfig(str(path)))
    assert (summary.num_actions, summary.action_size, summary.total_steps) == (5, 0, 4 * T)


def test_minari_with_one_array(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "main_data.hdf5", "w") as file:
        for name, rows in (("observations", T + 1), ("actions", T)):
            file[f"episode_0/{name}"] = np.ones((rows, 2))
        for name in ("rewards", "terminations", "truncations"):
            file[f"episode_0/{name}"] = np.zeros(T)
    (only,) = episodes(tmp_path)
    assert only.obs["observations"].shape == (T + 1, 2)
    assert only.success is False


def test_d4rl_is_split_where_episodes_end(tmp_path: Path) -> None:
    found = episodes(write_d4rl(tmp_path / "flat.hdf5"))
    assert [e.obs["observations"][:, 0].tolist() for e in found] == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert [e.length for e in found] == [3, 2, 2]
    assert [e.terminated for e in found] == [True, False, False]
    assert [e.episode_return for e in found] == [6, 15, 24]
    assert [float(e.reward.sum()) for e in found] == [6, 9, 15], "paid a step early where the task ended"
    whole = episodes(write_d4rl(tmp_path / "whole.hdf5", next_obs=True))
    assert [e.length for e in whole] == [4, 3, 3]
    assert whole[0].obs["observations"][:, 0].tolist() == [0, 1, 2, 3, 3.5]


def test_scan_tells_what_reading_gives(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_libero(tmp_path / name / "x.hdf5", failures=1)
    config = DataConfig(f"{tmp_path / 'a'}, {tmp_path / 'b' / 'x.hdf5'}", image_size=4)
    summary, found = scan(config), list(read_episodes(config))
    assert [(e.file, e.name, e.length, e.episode_return, e.success) for e in summary.episodes] == [
        (e.file, e.name, e.length, e.episode_return, e.success) for e in found
    ]
    for key, spec in summary.obs.items():
        assert {e.obs[key].shape[1:] for e in found} == {spec.shape}
        assert {e.obs[key].dtype for e in found} == {spec.dtype}
    arrays = [a for e in found for a in (*e.obs.values(), e.action, e.reward)]
    assert summary.memory_bytes == sum(array.nbytes for array in arrays)
    assert summary.action_size == 7


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.integers(0, 12), st.integers(0, 9), st.integers(0, 2**31))
def test_shrinking_is_the_mean_of_the_area(size: int, higher: int, wider: int, seed: int) -> None:
    frames = np.random.default_rng(seed).integers(0, 256, (2, size + higher, size + wider, 3), np.uint8)
    height, width = frames.shape[1:3]
    # Every pixel blown up so far that both grids fit: the mean of blocks is then exact.
    large = frames.repeat(size, axis=1).repeat(size, axis=2).astype(float)
    exact = large.reshape(2, size, height, size, width, 3).mean(axis=(2, 4))
    assert np.abs(shrink(frames, size).astype(float) - exact).max() <= 0.5 + 1e-3


# Choosing -----------------------------------------------------------------------------------------
def test_keys_and_messages_about_them(tmp_path: Path) -> None:
    path = write_libero(tmp_path / "task.hdf5")
    (first, *_) = episodes(path, keys=("joint_states",))
    assert list(first.obs) == ["joint_states"]
    with pytest.raises(DataError, match=r"'joint_state'.*Did you mean 'joint_states'"):
        episodes(path, keys=("joint_state",))
    with pytest.raises(DataError, match=r"mask/valid.*It has none"):
        episodes(path, filter="valid")
    with pytest.raises(DataError, match=r"8 × 8 pixels, which cannot be shrunk to 16"):
        episodes(path, image_size=16)


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    write_libero(tmp_path / "task.hdf5")
    (tmp_path / "empty").mkdir()
    for path, message in {
        "": "Say where",
        str(tmp_path / "tusk.hdf5"): "Did you mean 'task.hdf5'",
        str(tmp_path / "empty"): "holds no .hdf5 or .h5",
    }.items():
        with pytest.raises(DataError, match=message):
            scan(DataConfig(path))


def test_without_h5py_a_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_libero(tmp_path / "task.hdf5")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(DataError, match=r"pip install 'ludus\[data\]'"):
        scan(DataConfig(str(path)))


# Bad data -----------------------------------------------------------------------------------------
def replaced(key: str, values: Any) -> Callable[[h5py.Group], None]:
    def change(demo: h5py.Group) -> None:
        del demo[key]
        if values is not None:
            demo[key] = values

    return change


def with_nan(key: str) -> Callable[[h5py.Group], None]:
    def change(demo: h5py.Group) -> None:
        values = demo[key][:].astype(np.float64)
        values[3] = np.nan
        replaced(key, values)(demo)

    return change


def emptied(demo: h5py.Group) -> None:
    for key in ["actions", "rewards", *(f"obs/{name}" for name in demo["obs"])]:
        replaced(key, demo[key][:0])(demo)
    demo.attrs["num_samples"] = 0


BAD = {
    "no actions": (replaced("actions", None), "actions is missing"),
    "no rewards": (replaced("rewards", None), "rewards is missing"),
    "no observations": (replaced("obs", None), "obs is missing"),
    "one observation missing": (replaced("obs/ee_states", None), "observation ee_states is missing"),
    "nan action": (with_nan("actions"), "actions is not finite in 7 places, first in row 3"),
    "nan reward": (with_nan("rewards"), "rewards is not finite"),
    "nan observation": (with_nan("obs/joint_states"), "joint_states is not finite"),
    "infinite observation": (replaced("obs/ee_states", np.full((T, 6), 1e300)), "ee_states is not finite"),
    "float image": (replaced("obs/agentview_rgb", np.zeros((T, 84, 84, 3))), "must be uint8"),
    "strings": (replaced("obs/ee_states", np.array([b"x"] * T)), "ee_states holds text"),
    "objects": (replaced("actions", ["a"] * T), "actions has rows of one text"),
    "short observation": (replaced("obs/ee_states", np.zeros((T - 1, 6))), f"has {T - 1} rows"),
    "long rewards": (replaced("rewards", np.zeros(T + 1)), f"has {T + 1} rows"),
    "empty": (emptied, "actions is empty"),
    "other shape": (replaced("obs/joint_states", np.zeros((T, 9))), r"joint_states is \(9,\)"),
    "other action": (replaced("actions", np.zeros((T, 6))), r"actions has the shape \(6,\)"),
    "num_samples": (lambda demo: demo.attrs.__setitem__("num_samples", 99), "num_samples says 99"),
    "group for array": (replaced("actions/inner", None), "actions is not an array"),
    "empty actions": (replaced("actions", np.zeros((T, 0))), "actions holds no numbers"),
    "empty observation": (replaced("obs/ee_states", np.zeros((T, 0))), "ee_states holds no numbers"),
    "success in words": (lambda demo: demo.attrs.__setitem__("success", "no"), "success is 'no', neither yes nor"),
    "unknown success": (
        lambda demo: demo.attrs.__setitem__("success", np.nan),
        "success is 'nan', neither yes nor",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_episodes_are_named_and_refused_or_skipped(tmp_path: Path, case: str) -> None:
    change, message = BAD[case]
    path = write_libero(tmp_path / "task.hdf5", demos=4)
    with h5py.File(path, "r+") as file:
        if case == "group for array":
            del file["data/demo_0/actions"]
            file["data/demo_0/actions/inner"] = 0
        change(file["data/demo_0"])
    for read in (scan, lambda config: list(read_episodes(config))):
        with pytest.raises(DataError, match=rf"task\.hdf5: demo_0: .*{message}") as caught:
            read(DataConfig(str(path)))
        assert str(caught.value).count("--data.skip-bad") == 1
    summary = scan(DataConfig(str(path), skip_bad=True))
    assert [e.name for e in summary.episodes] == ["demo_1", "demo_2", "demo_3"]
    assert [finding.level for finding in summary.findings if "demo_0" in finding.what] == ["error"]
    with pytest.warns(RuntimeWarning, match=rf"1 broken.*demo_0: .*{message}"):
        assert [e.name for e in episodes(path, skip_bad=True)] == ["demo_1", "demo_2", "demo_3"]


def test_what_all_episodes_have_wrong_is_told_also_where_broken_ones_are_left_out(tmp_path: Path) -> None:
    path = write_libero(tmp_path / "task.hdf5")
    with h5py.File(path, "r+") as file:
        for demo in file["data"].values():
            replaced("obs/agentview_rgb", np.zeros((T, 84, 84, 3)))(demo)
    with pytest.raises(DataError, match=r"no episode that can be used.*agentview_rgb is 84 × 84 × 3 float64"):
        scan(DataConfig(str(path), skip_bad=True))


def test_next_observations_of_another_form_are_named(tmp_path: Path) -> None:
    path = write_robomimic(tmp_path / "task.hdf5", next_obs=True)
    with h5py.File(path, "r+") as file:
        replaced("next_obs/object", np.zeros((T, 2)))(file["data/demo_0"])
    with pytest.raises(DataError, match="demo_0: next_obs/object is 2 float64 a row, the observation 1 float64"):
        scan(DataConfig(str(path)))


def test_what_lies_beside_the_episodes_is_passed_over(tmp_path: Path) -> None:
    path = write_libero(tmp_path / "task.hdf5")
    with h5py.File(path, "r+") as file:
        del file["data"].attrs["problem_info"]
        file["data/a_note"] = [1]
        file["data/nowhere"] = h5py.SoftLink("/data/lost")
    assert len(episodes(path)) == 3
    assert scan(DataConfig(str(path))).files[0].format == "LIBERO"


def write_text(path: Path) -> None:
    path.write_text("<html>not found</html>")


def cut(path: Path) -> None:
    write_libero(path)
    path.write_bytes(path.read_bytes()[:-2000])


def other_layout(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["something"] = [1]


def no_demos(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_group("data")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (write_text, "not an HDF5 file"),
        (cut, "cut off"),
        (lambda path: path.touch(), "the file is empty"),
        (other_layout, "in no layout"),
        (no_demos, "holds no episodes"),
    ],
)
def test_unreadable_files_are_named_and_refused_or_skipped(
    tmp_path: Path, make: Callable[[Path], None], message: str
) -> None:
    bad = tmp_path / "bad.hdf5"
    make(bad)
    with pytest.raises(DataError, match=rf"bad\.hdf5.*{message}"):
        scan(DataConfig(str(bad)))
    with pytest.raises(DataError, match=rf"no episode that can be used.*{message}"):
        scan(DataConfig(str(bad), skip_bad=True))
    write_libero(tmp_path / "good.hdf5")
    assert len(scan(DataConfig(str(tmp_path), skip_bad=True)).episodes) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert len(episodes(tmp_path, skip_bad=True)) == 3


@settings(max_examples=40, deadline=None)
@given(st.floats(0, 1, exclude_max=True))
def test_a_file_cut_anywhere_is_a_sentence(share: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write_libero(Path(folder) / "task.hdf5", demos=1)
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])
        with pytest.raises(DataError, match=r"task\.hdf5 cannot be opened: "):
            episodes(path)


@pytest.mark.parametrize(
    ("key", "values", "message"),
    [
        ("rewards", np.zeros(9), "has 9 rows, but there are 10"),
        ("terminals", np.zeros(9), "needs a yes or no for each step"),
        ("observations", np.full((10, 1), np.nan), "episode_0: observations is not finite"),
    ],
)
def test_bad_d4rl(tmp_path: Path, key: str, values: np.ndarray, message: str) -> None:
    path = write_d4rl(tmp_path / "flat.hdf5")
    with h5py.File(path, "r+") as file:
        replaced(key, values)(file)
    with pytest.raises(DataError, match=message):
        episodes(path)


def test_d4rl_without_rows_is_a_sentence(tmp_path: Path) -> None:
    path = write_d4rl(tmp_path / "flat.hdf5")
    with h5py.File(path, "r+") as file:
        for key in list(file):
            replaced(key, file[key][:0])(file)
    with pytest.raises(DataError, match="holds no episodes"):
        episodes(path)


# Labels -------------------------------------------------------------------------------------------
def test_a_learned_reward_is_added_to_a_copy_and_can_be_read(tmp_path: Path) -> None:
    path, target = write_libero(tmp_path / "task.hdf5", failures=1), tmp_path / "labelled.hdf5"
    found = episodes(path)
    labels = {e.name: np.linspace(0, k + 1, e.length).astype(np.float32) for k, e in enumerate(found)}
    copy_with_reward(path, target, {e.name: as_file_rows(e, labels[e.name]) for e in found}, run="run-1")
    for before, after in zip(found, episodes(target, reward="learned_rewards"), strict=True):
        assert np.array_equal(after.reward, labels[after.name])
        assert after.success == before.success
        assert all(np.array_equal(after.obs[key], before.obs[key]) for key in before.obs)
    assert [e.episode_return for e in episodes(target)] == [e.episode_return for e in found], "as it was"
    with h5py.File(target) as file:
        assert file["data"].attrs["learned_rewards_run"] == "run-1"
        assert file["data/demo_0"].attrs["model_file"] == "<mujoco/>"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["labelled.hdf5", "task.hdf5"]


def test_labelling_refuses_what_does_not_fit(tmp_path: Path) -> None:
    path = write_libero(tmp_path / "task.hdf5")
    rows = np.zeros(T, np.float32)
    for labels, key, message in (
        ({"demo_9": rows}, "learned_rewards", "no episode demo_9"),
        ({"demo_0": rows[1:]}, "learned_rewards", f"demo_0 has {T} rows"),
        ({"demo_0": rows * np.nan}, "learned_rewards", "not finite"),
        ({"demo_0": rows}, "actions", "cannot be called"),
    ):
        with pytest.raises(DataError, match=message):
            copy_with_reward(path, tmp_path / "new.hdf5", labels, key=key)
    with pytest.raises(DataError, match="already there"):
        copy_with_reward(path, path, {"demo_0": rows})
    with pytest.raises(DataError, match=r"learned_rewards is missing.*ludus label"):
        episodes(path, reward="learned_rewards")


# ludus data info ----------------------------------------------------------------------------------
def info(*arguments: object) -> warm_python.Completed:
    return warm_python.run(warm_python.ludus_command("data", "info", *arguments))


def test_info_finds_what_is_suspicious(tmp_path: Path) -> None:
    path = write_libero(tmp_path / "task.hdf5", demos=3)
    with h5py.File(path, "r+") as file:
        for k in range(3):
            demo = file[f"data/demo_{k}"]
            replaced("obs/agentview_rgb", np.zeros((T, 8, 8, 3), np.uint8))(demo)
            replaced("obs/ee_states", np.ones((T, 6)))(demo)
            replaced("actions", 3 * demo["actions"][:] + k)(demo)
        file["data"].attrs["total"] = 5
        file.copy("data/demo_2", "data/demo_3")
    _, _, findings = describe(DataConfig(str(path)))
    text = "\n".join(f"{f.level} {f.what} {f.fix}" for f in findings)
    for expected in (
        "All 4 returns are equal (1): a reward cannot be learned from these. Add failures",
        "beyond [-1, 1]",
        "ee_states never changes",
        "agentview_rgb: 12 of 12 pictures looked at are black",
        "1 episodes are copies",
        "attribute total says 5",
        "attribute num_demos says 3 episodes, it has 4",
        "images are turned upright",
    ):
        assert expected in text
    assert "error" not in {f.level for f in findings}


def test_info_command(tmp_path: Path) -> None:
    path = write_libero(tmp_path / "task.hdf5", failures=1)
    done = info(path)
    assert done.returncode == 0, done.stderr
    assert "3 (2 success, 1 failure)" in done.stdout
    assert LANGUAGE in done.stdout
    assert max(map(len, done.stdout.splitlines()[1:])) <= 100
    cut(tmp_path / "bad.hdf5")
    broken = info(tmp_path, "--json")
    assert broken.returncode == 1
    facts = json.loads(broken.stdout)
    assert facts["episodes"] == 3
    assert [f["level"] for f in facts["findings"]].count("error") == 1
    for arguments, code in (([tmp_path / "bad.hdf5"], 1), ([tmp_path / "none.hdf5"], 2), ([], 2)):
        failed = info(*arguments)
        assert failed.returncode == code
        assert "Traceback" not in failed.stdout + failed.stderr
