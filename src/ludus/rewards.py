"""What can be done with a learned reward: judge recorded episodes, label them, show what it says of them."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ludus.algorithms.replay.config import StoreTrainConfig
from ludus.algorithms.replay.recorded import choose_held_out
from ludus.algorithms.reward.metrics import RewardReport
from ludus.data.episode import Episode, as_file_rows
from ludus.data.files import data_files
from ludus.data.reading import DataSummary, read_episodes, scan
from ludus.data.writing import LEARNED_REWARD, check_target, copy_with_reward
from ludus.errors import ConfigError, DataError
from ludus.policies.reward import RewardModel
from ludus.saved_run import from_checkpoint, run_folder, trusted_config
from ludus.show.reward_page import MAX_FRAMES, MAX_TRACES, RewardTrace
from ludus.training.checkpoint import load_reward


def judge(model: RewardModel, episode: Episode) -> dict[str, np.ndarray]:
    """What each head says of each step: the reward in the returns' units, progress and success from 0 to 1."""
    obs = {name: torch.from_numpy(episode.obs[name]) for name in model.obs}
    heads = model.episode_heads(obs, torch.from_numpy(episode.action))
    said = {name: heads[:, i].sigmoid().numpy() for i, name in enumerate(model.names)}
    return said | {"reward": model.to_units(heads[:, 0].double()).float().numpy()}


def load(run: str | Path) -> RewardModel:
    """The reward that a run has learned: its best, or that of the checkpoint that `run` names (RUN@100000)."""
    return from_checkpoint(run, load_reward)


def label(data: str, run: str | Path, out: str | Path | None = None, head: str = "reward") -> tuple[Path, int]:
    """Write a copy of a file with what a head says of every step; returns its path and the number of episodes."""
    files = data_files(data)
    if len(files) != 1:
        raise ConfigError(f"{data} is {len(files)} files; label them one by one.")
    target = Path(out) if out else files[0].with_name(f"{files[0].stem}_labelled{files[0].suffix}")
    check_target(target)
    folder, model = run_folder(run), load(run)
    if head not in model.names:
        raise ConfigError(f"The reward of {folder} has no head {head!r}; it has {', '.join(model.names)}.")
    # All episodes, whichever the run was trained on, and whatever paid it.
    config = replace(
        _config_of(folder).data, path=str(files[0]), keys=tuple(model.obs), filter="", reward="rewards"
    )
    _refuse_other_sizes(model, scan(config), files[0], folder)
    said = {e.name: as_file_rows(e, judge(model, e)[head]) for e in read_episodes(config)}
    copy_with_reward(files[0], target, said, folder.resolve().name, label_key(head))
    return target, len(said)


def _refuse_other_sizes(model: RewardModel, summary: DataSummary, file: Path, folder: Path) -> None:
    """A sentence where the file's episodes are not of the form of those that the reward was learned from."""
    learned = f"the reward of {folder} was learned from"
    for name, (shape, _) in model.obs.items():
        if summary.obs[name].shape != shape:
            here, there = (" × ".join(map(str, numbers)) for numbers in (summary.obs[name].shape, shape))
            raise DataError(f"{file}: {name} is {here} numbers; {learned} {there}.")
    choices, size = (model.action_size, 0) if model.discrete else (0, model.action_size)
    if summary.action_size != size or summary.num_actions > choices:
        here, there = _told_actions(summary.num_actions, summary.action_size), _told_actions(choices, size)
        raise DataError(f"{file}: actions are {here}; {learned} {there}.")


def _told_actions(choices: int, size: int) -> str:
    return f"one of {choices} choices" if choices else f"{size} numbers"


def label_key(head: str) -> str:
    """The dataset a label is written to."""
    return LEARNED_REWARD if head == "reward" else f"learned_{head}"


def held_out_metrics(run: str | Path) -> dict[str, float]:
    """How good a run's reward is on the episodes it was not trained on."""
    folder = run_folder(run)
    model, config = load(run), _config_of(folder)
    episodes = list(_held_out(config))
    if not episodes:
        raise ConfigError(f"{folder} held no episode out (--data.held-out 0): there is nothing to measure it by.")
    metrics = RewardReport(episodes)(model)
    return {f"reward/{name}": value for name, value in metrics.items() if value == value}


def reward_traces(run: str | Path) -> list[RewardTrace]:
    """The reward of a run along some of its held-out episodes, half of them failures if there are as many."""
    folder = run_folder(run)
    model, config = load(run), _config_of(folder)
    kinds: dict[bool | None, list[RewardTrace]] = defaultdict(list)
    for episode in _held_out(config):
        if len(kinds[episode.success]) < MAX_TRACES:
            kinds[episode.success].append(_trace(model, episode))
    return [trace for traces in kinds.values() for trace in traces]


def _config_of(folder: Path) -> StoreTrainConfig:
    config = trusted_config(folder, trust=False)
    if not isinstance(config, StoreTrainConfig):
        raise ConfigError(f"{folder} is a run of {config.algo}, which learns no reward.")
    return config


def _held_out(config: StoreTrainConfig) -> Iterator[Episode]:
    """The same that the run held out."""
    data = config.data
    held = choose_held_out(scan(data).episodes, data.held_out, config.seed)
    return (episode for episode in read_episodes(data) if (episode.file, episode.name) in held)


def _trace(model: RewardModel, episode: Episode) -> RewardTrace:
    judged = judge(model, episode)
    frames: list[np.ndarray] = []
    steps: list[int] = []
    if model.cameras:
        steps = np.linspace(0, episode.length - 1, min(MAX_FRAMES, episode.length)).round().astype(int).tolist()
        frames = [episode.obs[model.cameras[0]][t + 1] for t in steps]
    outcome = {True: " · success", False: " · failure", None: ""}[episode.success]
    title = f"{episode.file.stem} {episode.name}{outcome}"
    return RewardTrace(
        title, episode.success, judged["reward"], episode.true_reward, judged.get("progress"), frames, steps
    )
