"""Recording our own KUKA task in LIBERO's layout and conventions: successes and failures, images if asked."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ludus.data.files import SUFFIXES
from ludus.data.hdf5 import h5py_module
from ludus.data.writing import DemoRows, LiberoWriter, check_target
from ludus.envs.kuka.behaviour import Act, Behaviour
from ludus.envs.kuka.config import KukaConfig
from ludus.envs.kuka.scripted import scripted_action
from ludus.envs.kuka.task import SUBSTEPS, KukaPickPlace, scene_path
from ludus.envs.mujoco.cameras import Motion, SceneCameras
from ludus.envs.mujoco.task import Score
from ludus.envs.vec import derive_seed
from ludus.errors import ConfigError, DataError
from ludus.saved_run import load, run_folder, trusted_config

LANGUAGE = "pick up the cube and place it on the pad"
CAMERAS = {"agentview_rgb": "agentview", "eye_in_hand_rgb": "eye_in_hand"}
SCRIPTED = "scripted"
CONTROL_SECONDS = SUBSTEPS * 0.005  # of one step
_ROWS = 32
_MOST_TRIES = 20  # episodes played for each one wanted
_SMALLEST, _LARGEST = 16, 512  # images


@dataclass(frozen=True)
class RecordConfig:
    """What to record."""

    episodes: int = 200
    """How many."""
    successes: float = 0.5
    """Share of them that succeed."""
    noise: float = 0.1
    """Standard deviation of the noise on every action, successes and failures alike."""
    images: int = 0
    """Height and width of camera images; 0: none."""
    seed: int = 0
    """Of the starts, the noise and what goes wrong."""


@dataclass
class _Take:
    """One episode that was played. Row t: what was done, and what it led to."""

    rows: dict[str, np.ndarray]
    motion: Motion
    success: bool
    terminated: bool


def record(
    source: str,
    out: str | Path,
    config: RecordConfig | None = None,
    report: Callable[[str], None] = lambda _: None,
    trust: bool = False,
) -> Path:
    """Record 'scripted' or a policy of a run (its best, or RUN@100000) into `out`; `report` hears of the progress.

    `trust`: import the code that the run names, though this user did not train it on this machine.
    """
    config, path = config or RecordConfig(), Path(out)
    _check(config, path)
    h5py_module()
    check_target(path)
    act, forget, env_config = _policy(source, trust)
    env = _WatchedKuka(env_config, min(_ROWS, max(config.episodes, 1)))
    try:
        takes = _play(env, act, forget, config, report)
    finally:
        env.close()
    facts = {**dataclasses.asdict(config), "policy": source if source == SCRIPTED else Path(source).name}
    env_args = {
        "env_name": env.name,
        "type": "ludus",
        "env_kwargs": dataclasses.asdict(env_config),
        "record": facts,
    }
    env_args["states"] = "time, qpos, qvel, mocap_pos"
    with LiberoWriter(path, env_args, LANGUAGE) as writer:
        scene = scene_path().read_text()
        for i, (take, images) in enumerate(zip(takes, _images(takes, config.images), strict=True), 1):
            writer.add(_demo(take, images, scene))
            if config.images:
                report(f"{i} of {len(takes)} episodes drawn")
    return path


def _check(config: RecordConfig, path: Path) -> None:
    if config.episodes < 1:
        raise ConfigError(f"--episodes is {config.episodes}; it must be at least 1.")
    if not 0 <= config.successes <= 1:
        raise ConfigError(f"--successes is {config.successes}; it is a share, from 0 to 1.")
    if not 0 <= config.noise <= 1:
        raise ConfigError(f"--noise is {config.noise}; it must be from 0 to 1.")
    if config.images and not _SMALLEST <= config.images <= _LARGEST:
        raise ConfigError(f"--images is {config.images}; it must be 0 (none) or {_SMALLEST} to {_LARGEST}.")
    if config.seed < 0:
        raise ConfigError(f"--seed is {config.seed}; it must not be negative.")
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--out is {path}; it must end in {' or '.join(SUFFIXES)}.")


def _policy(source: str, trust: bool) -> tuple[Act, Callable[[Tensor], None], KukaConfig]:
    """(what acts, what is told of episodes' ends, the task)."""
    if source == SCRIPTED:
        return scripted_action, lambda ended: None, KukaConfig()
    folder = run_folder(source)
    env_config = trusted_config(folder, trust).env
    if not isinstance(env_config, KukaConfig):
        raise ConfigError(f"{folder} is no run of the KUKA task, the only one that can be recorded so far.")
    if env_config.image_size:
        raise ConfigError(
            f"{folder} acts on images, which 'ludus record' does not draw while it plays. Record 'scripted' or a "
            "run without --env.image-size, and add pictures with --images."
        )
    actor = load(source, trust).actor()
    return actor.act, actor.forget, env_config


# Playing ------------------------------------------------------------------------------------------
class _WatchedKuka(KukaPickPlace):
    """The task from evaluation's starts, with a look at every row before those that ended begin anew.

    It goes on after a success, to its time limit: if only failures were long, their length would tell them apart,
    and a reward of R / T would be paid for haste.
    """

    def __init__(self, config: KukaConfig, rows: int) -> None:
        super().__init__(config, rows, threads=torch.get_num_threads(), evaluation=True)
        self._gripper = self.mj_model.body("gripper").id
        self._fields = {
            name: self.sim.field(name) for name in ("qpos", "qvel", "mocap_pos", "sensordata", "xquat")
        }
        self.seen: dict[str, Tensor] = {}

    def score(self) -> Score:
        score = super().score()
        self.seen = self.look()
        return score._replace(terminated=score.metrics["fallen"] > 0)

    def look(self) -> dict[str, Tensor]:
        """Of every row, now."""
        f = self._fields
        return {
            "qpos": f["qpos"].clone(),
            "qvel": f["qvel"].clone(),
            "mocap_pos": f["mocap_pos"].clone(),
            "ee_states": torch.cat([f["sensordata"][:, :3], axis_angle(f["xquat"][:, self._gripper])], dim=1),
            "progress": self.progress(),
        }


def axis_angle(quaternion: Tensor) -> Tensor:
    """[n, 4] → [n, 3] axis × angle.

    The hand points down, half a turn from upright, where an axis and its opposite mean the same. The one that
    points along its largest number is taken, so that the values do not jump.
    """
    w, axis = quaternion[:, :1], quaternion[:, 1:]
    largest = axis.gather(1, axis.abs().argmax(dim=1, keepdim=True))
    w, axis = w * largest.sign(), axis * largest.sign()
    length = axis.norm(dim=1, keepdim=True)
    return axis / length.clamp(min=1e-9) * 2 * torch.atan2(length, w)


def _play(
    env: _WatchedKuka,
    act: Act,
    forget: Callable[[Tensor], None],
    config: RecordConfig,
    report: Callable[[str], None],
) -> list[_Take]:
    """Episodes until there are enough of both kinds, in the order in which they ended."""
    wanted = {True: round(config.episodes * config.successes)}
    wanted[False] = config.episodes - wanted[True]
    kept: list[_Take] = []
    for played, take in enumerate(_episodes(env, act, forget, config, wanted), 1):
        if wanted[take.success] > 0:
            wanted[take.success] -= 1
            kept.append(take)
            report(f"{len(kept)} of {config.episodes} episodes kept, {played} played")
        if len(kept) == config.episodes:
            return kept
        if played >= _MOST_TRIES * config.episodes + 4 * env.num_rows:
            break
    raise DataError(
        f"After {played} episodes {wanted[True]} successes and {wanted[False]} failures are still missing. "
        "Record a better policy, take less --noise, or change --successes."
    )


@torch.no_grad()
def _episodes(
    env: _WatchedKuka,
    act: Act,
    forget: Callable[[Tensor], None],
    config: RecordConfig,
    wanted: dict[bool, int],
) -> Iterator[_Take]:
    """Plays without end; `wanted` says what still is, and so what new episodes should become."""
    behaviour = Behaviour(act, env.num_rows, config.noise, derive_seed(config.seed, 7))
    obs = env.reset(derive_seed(config.seed, 6))
    chance = torch.Generator().manual_seed(derive_seed(config.seed, 8))
    tape: list[dict[str, Tensor]] = []  # of all rows; each row's episode is its newest part
    begun = torch.zeros(env.num_rows, dtype=torch.int64)  # place on the tape

    def begin(rows: Tensor) -> None:
        share = wanted[True] / max(1, wanted[True] + wanted[False])
        behaviour.begin(rows, torch.rand(rows.numel(), generator=chance) < share)

    begin(torch.arange(env.num_rows))
    before, offset = env.look(), 0
    while True:
        action = behaviour.act(obs)
        step = env.step(action)
        done = step.terminated | step.truncated
        state = torch.where(done[:, None], step.final_obs, step.obs)
        tape.append({**env.seen, "state": state, "action": action, "before": _physics(before)})
        obs, before = step.obs, env.look() if bool(done.any()) else env.seen
        ended = done.nonzero().squeeze(1)
        for row in ended.tolist():
            if not bool(step.metrics["diverged"][row]):
                success, terminated = bool(step.metrics["success"][row]), bool(step.terminated[row])
                yield _take(tape[int(begun[row]) - offset :], row, success, terminated)
        if ended.numel():
            forget(done)
            begin(ended)
            begun[ended] = offset + len(tape)
            unneeded = int(begun.min()) - offset
            del tape[:unneeded]
            offset += unneeded


def _physics(look: dict[str, Tensor]) -> Tensor:
    return torch.cat([look["qpos"], look["qvel"], look["mocap_pos"].flatten(1)], dim=1)


def _take(tape: list[dict[str, Tensor]], row: int, success: bool, terminated: bool) -> _Take:
    rows = {key: torch.stack([moment[key][row] for moment in tape]).numpy() for key in tape[0]}
    motion = Motion(rows.pop("qpos"), rows.pop("mocap_pos"))
    return _Take(rows, motion, success, terminated)


# Writing ------------------------------------------------------------------------------------------
def _images(takes: list[_Take], size: int) -> Iterator[dict[str, np.ndarray]]:
    if not size:
        yield from ({} for _ in takes)
        return
    with SceneCameras(scene_path(), tuple(CAMERAS.values()), size) as cameras:
        for images in cameras.draw(take.motion for take in takes):
            yield {key: images[camera] for key, camera in CAMERAS.items()}


def _demo(take: _Take, images: dict[str, np.ndarray], scene: str) -> DemoRows:
    rows, qpos = take.rows, take.motion.qpos
    count = len(qpos)
    rewards = np.zeros(count, np.float32)
    rewards[-1] = take.success
    seconds = np.arange(count)[:, None] * CONTROL_SECONDS
    obs: dict[str, Any] = {
        "ee_states": rows["ee_states"].astype(np.float32),
        "gripper_states": qpos[:, 7:9].astype(np.float32),
        "joint_states": qpos[:, :7].astype(np.float32),
        "state": rows["state"],
    }
    return DemoRows(
        obs=obs | images,
        actions=rows["action"],
        rewards=rewards,
        shaped_rewards=rows["progress"].astype(np.float32),
        states=np.concatenate([seconds, rows["before"]], axis=1),
        success=take.success,
        terminated=take.terminated,
        model_file=scene,
    )
