"""Tiny runs of every kind: about a second of training, several epochs and checkpoints."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .children import Child, Ended, Limits
from .faults import count_calls

EVERY_JOB: dict[str, Any] = {
    "torch-threads": 1,
    "eval.episodes": 2,
    "eval.no-stochastic": None,
    "log.no-report": None,
    "log.no-tensorboard": None,
    "policy.hidden": "16 16",
}


def on_policy(
    envs: int, horizon: int, iterations: int, epochs: int, segments: int = 0, **more: Any
) -> dict[str, Any]:
    total = (segments or envs) * horizon * iterations
    plan: dict[str, Any] = {
        "ppo.horizon": horizon,
        "ppo.minibatches": 2,
        "ppo.update-epochs": 2,
        "env.num-envs": envs,
    }
    plan |= {"total-steps": total, "eval.every": total // epochs}
    if segments:  # that the rows do not divide: some are half recorded when the run is saved
        plan |= {"ppo.segments": segments, "policy.memory": "lstm", "policy.memory-size": 8, "groups": 2}
    return EVERY_JOB | plan | {name.replace("__", ".").replace("_", "-"): value for name, value in more.items()}


STORED = EVERY_JOB | {
    "replay.train-batches": 6,
    "epochs": 3,
    "cycles": 2,
    "iterations": 2,
}
REPLAY = STORED | {"replay.warmup": 60, "replay.steps": 40, "replay.batch-size": 16}
REWARD = {"reward.hidden": "16 16", "reward.rrd-batch-size": 8, "reward.rrd-sample-size": 8}
_LANES = {"groups": 2, "env.num-envs": 4, "env.max-steps": 30, "replay.capacity": 400}

JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "cartpole": ("gym:CartPole-v1", on_policy(4, 16, 24, 6, env__max_steps=40)),
    "cartpole with TensorBoard": (
        "gym:CartPole-v1",
        {key: value for key, value in on_policy(4, 16, 12, 3, checkpoint__every=100, env__max_steps=30).items()
         if key != "log.no-tensorboard"},
    ),
    "cartpole with workers": ("gym:CartPole-v1", on_policy(4, 16, 12, 4, env__max_steps=40, env__workers=2)),
    "forage, recurrent": ("forage", on_policy(6, 8, 20, 5, segments=28, env__episode_length=20)),
    "sac": ("gym:Pendulum-v1", REPLAY | {"algo": "sac", "env.max-steps": 30}),
    "dqn": ("gym:CartPole-v1", REPLAY | _LANES | {"algo": "dqn", "replay.train-target": 7}),
    "rrd": ("rrd-mujoco:hopper", REPLAY | _LANES | REWARD),
    "reward from data": ("rrd-libero", STORED | REWARD | {"data": "data.hdf5", "data.keys": "state"}),
    "humanoid": (
        "humanoid-mimic",
        on_policy(4, 8, 9, 3, groups=2, env__clips="stand.npz", env__max_steps=15, env__threads=1),
    ),
    "kuka": ("kuka-pick-place", on_policy(4, 16, 8, 4, groups=2, env__max_steps=30)),
    "pettingzoo": ("pettingzoo:pettingzoo_test_envs:Arena", on_policy(4, 8, 20, 5, segments=20)),
}  # fmt: skip
LIAR = on_policy(4, 8, 16, 4)
"""The settings of `liars.py`."""


def train_arguments(job: str, files: Path) -> list[str]:
    """Of `ludus`, to train the job in the folder `run`; `files` holds what `write_files` has written."""
    preset, settings = JOBS[job]
    return arguments_of(preset, with_files(settings, files))


def with_files(settings: dict[str, Any], files: Path) -> dict[str, Any]:
    """The settings with whole paths."""
    found = {name: files / value for name, value in settings.items() if value in ("data.hdf5", "stand.npz")}
    return settings | found


def arguments_of(preset: str, settings: dict[str, Any]) -> list[str]:
    flags: list[str] = []
    for name, value in settings.items():
        flags += [f"--{name}", *([] if value is None else str(value).split(" "))]
    return ["train", preset, "--run-dir", "run", *flags]


@dataclass(frozen=True)
class Reference:
    """A run that was left alone, and what it took."""

    job: str
    run: Path
    arguments: tuple[str, ...]
    cpu_s: float
    calls: dict[str, int]
    largest: int
    """Bytes of its largest file."""
    bytes: int
    """Of all its files."""

    @classmethod
    def load(cls, folder: Path) -> "Reference":
        facts = json.loads((folder / "facts.json").read_text())
        return cls(**facts | {"run": folder / "run", "arguments": tuple(facts["arguments"])})


def make_reference(job: str, folder: Path, arguments: Sequence[str]) -> Ended:
    """Train it undisturbed in `folder`/run and write down what it took; as it ended."""
    folder.mkdir(parents=True)
    counted = folder.parent / f"{folder.name}.calls.json"
    child = Child(arguments, folder, lambda: count_calls(folder, counted), Limits(cpu_s=120, memory=8 << 30))
    ended = child.wait()
    if ended.code == 0:
        sizes = [file.stat().st_size for file in (folder / "run").rglob("*") if file.is_file()]
        facts = {"job": job, "arguments": list(arguments), "cpu_s": ended.cpu_s, "largest": max(sizes)}
        facts |= {"calls": json.loads(counted.read_text()), "bytes": sum(sizes)}
        (folder / "facts.json").write_text(json.dumps(facts))
    return ended


def write_files(folder: Path) -> None:
    """What some jobs learn from: recorded episodes, and a clip of a second."""
    from humanoid_envs import standing_clip
    from ludus.envs.humanoid.clip import save_clip

    write_data(folder / "data.hdf5")
    save_clip(standing_clip("stand", seconds=0.5), folder / "stand.npz")


def write_data(path: Path, episodes: int = 6, rows: int = 12) -> Path:
    """Recorded episodes in robomimic's layout, small."""
    import h5py

    random = np.random.default_rng(7)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        for k in range(episodes):
            demo = data.create_group(f"demo_{k}")
            done = np.zeros(rows, np.uint8)
            done[-1] = k % 2
            demo["obs/state"] = random.normal(size=(rows, 3)).astype(np.float32)
            demo["actions"] = random.uniform(-1, 1, (rows, 2)).astype(np.float32)
            demo["rewards"], demo["dones"] = done.astype(np.float64), done
            demo.attrs["num_samples"] = rows
    return path
