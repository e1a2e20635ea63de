"""How good a run's policy is on new starts, measured and kept in the run.

New starts are those that neither training nor the choice of the best policy has used. Where an environment has
fixed starts there are no others, and the measurement says so.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from ludus.config import TrainConfig
from ludus.config_files import read_table
from ludus.envs import sees_by_warp
from ludus.envs.abilities import start_words, tabulate
from ludus.envs.config import EnvConfig
from ludus.envs.mujoco.settings import TermSettings
from ludus.envs.showing import make_trial_env
from ludus.envs.vec import derive_seed
from ludus.errors import ConfigError
from ludus.policies.fit import refuse_misfit
from ludus.presets import find_preset
from ludus.ranges import check_fields
from ludus.saved_run import load_from, run_folder, trusted_config
from ludus.show.result_text import failures_of
from ludus.show.results import MOST_EPISODES, Measurement, episodes_of, keep_measurement
from ludus.training.checkpoint import best_checkpoint, checkpoints_in, step_of
from ludus.training.evaluator import NEW_STREAM, Evaluation, evaluate
from ludus.training.run_folder import CHECKPOINTS, RESULTS
from ludus.viewing import Cast

USUAL_EPISODES = 100  # where neither the user nor the run says how many
_MOST_REPLAYED_ROWS, _MOST_REPLAYED_STEPS = 4_096, 1_000_000  # of a measurement that is played again
_LARGEST_SHARE = 0.25  # of the training's steps, that the measurement at its end may take


@dataclass(frozen=True)
class Measured:
    """What came out of `measure_run`."""

    evaluation: Evaluation
    table: list[dict[str, Any]]  # its lines, where the episodes are of several kinds
    kept: Measurement  # as it stands in results.json


def measure_run(
    run: str | Path,
    episodes: int | None = None,
    deterministic: bool = True,
    seed: int | None = None,
    clips: str = "",
    trust: bool = False,
    randomization: str | dict[str, Any] | None = None,
    by: Literal["train", "eval"] = "eval",
    should_stop: Callable[[], bool] = lambda: False,
) -> Measured | None:
    """Measure a run's best policy on new starts, and keep what came out in results.json; None when stopped.

    `episodes`: by default as many as at the end of its training. An environment with fixed starts plays each of
    them once, whatever is asked for. `clips`: others for a humanoid to follow than those it was trained on.
    `randomization`: another than the run's own: "off", the name of a preset that has one, or the settings, also as
    JSON. `trust` as in `resume`.
    """
    folder = run_folder(run)
    config = with_seed(trusted_config(folder, trust), seed)
    if episodes is None:
        episodes = config.eval.final_episodes or USUAL_EPISODES
    if episodes < 1:
        raise ConfigError(f"--episodes is {episodes}; it must be at least 1.")
    torch.set_num_threads(config.torch_threads)
    # On the CPU, unless a GPU that is here draws what the policy was trained to see.
    seen_there = config.device != "cpu" and torch.cuda.is_available() and sees_by_warp(config.env, "cuda")
    device = torch.device("cuda" if seen_there else "cpu")
    policy, checkpoint = load_from(run, trust)
    env = make_trial_env(_randomized(config.env, randomization), clips, episodes, device)
    try:
        refuse_misfit(policy, env)
        limits = (should_stop, config.eval.max_steps)
        stream = derive_seed(config.seed, NEW_STREAM)
        result = evaluate(policy.to(device), env, episodes, stream, deterministic, *limits)
        if should_stop():
            return None
        measurement = Measurement(
            by=by,
            checkpoint=checkpoint.name,
            step=step_of(checkpoint),
            trained=step_of(checkpoints_in(folder / CHECKPOINTS)[-1]),
            best=checkpoint == best_checkpoint(folder / CHECKPOINTS),
            actions="deterministic" if deterministic else "sampled",
            seed=config.seed,
            result=result.summary(),
            settings=_other_settings(clips, randomization),
            fixed_starts=env.fixed_starts is not None,
            episodes=result.record(MOST_EPISODES),
            words=start_words(env),
        )
        _keep(folder, measurement)
        return Measured(result, tabulate(env, result.metrics, result.labels), measurement)
    finally:
        env.close()


def with_seed(config: TrainConfig, seed: int | None) -> TrainConfig:
    """The same with another seed, where one is given."""
    if seed is not None:
        config = replace(config, seed=seed)
        check_fields(config)
    return config


def _other_settings(clips: str, randomization: str | dict[str, Any] | None) -> dict[str, Any]:
    given = {"clip": clips or None, "randomization": randomization}
    return {name: value for name, value in given.items() if value is not None}


def _keep(folder: Path, measurement: Measurement) -> None:
    try:
        if warning := keep_measurement(folder / RESULTS, measurement):
            print(warning, file=sys.stderr)
    except OSError as error:  # a run that may be read alone is measured all the same
        print(f"Not kept in {folder / RESULTS}: {error.strerror}.", file=sys.stderr)


def final_episodes(config: TrainConfig, total_steps: int, mean_length: float) -> int:
    """How many episodes to measure after a training of so many steps, in which an episode takes `mean_length`."""
    affordable = int(_LARGEST_SHARE * total_steps / max(mean_length, 1.0))
    return min(config.eval.final_episodes, max(config.eval.episodes, affordable))


def _randomized(env: EnvConfig, randomization: str | dict[str, Any] | None) -> EnvConfig:
    """The task, randomised as is said."""
    if randomization is None:
        return env
    if not isinstance(env, TermSettings):
        raise ConfigError("--randomization is for tasks that MuJoCo simulates here: KUKA, runners, humanoid.")
    if randomization == "off":
        randomization = {}
    elif isinstance(randomization, str) and randomization.lstrip().startswith("{"):
        randomization = read_table(randomization)
    elif isinstance(randomization, str):
        name = randomization
        randomization = getattr(find_preset(name).config.env, "randomization", {})
        if not randomization:
            raise ConfigError(f"The preset {name!r} randomises nothing.")
    return replace(env, randomization=randomization, eval_randomized=True)


def cast_of(measurement: Measurement, most: int = 3) -> Cast | None:
    """Episodes of a measurement to look at: failures and successes, or the lowest and the highest returns.

    None where it names none that can be played again. Its file may be a stranger's, and ask for ever so much.
    """
    rows, recorded = measurement.episodes.get("rows"), episodes_of(measurement.episodes, measurement.words)
    if not isinstance(rows, int) or not 1 <= rows <= _MOST_REPLAYED_ROWS:
        return None
    longest = max((episode.length for episode in recorded), default=1) or 1
    # A row plays all its episodes before the one that is wanted.
    episodes = [e for e in recorded if (e.number // rows + 1) * longest <= _MOST_REPLAYED_STEPS]
    all_failed = failures_of(episodes)
    failed = all_failed[:most]
    others = [episode for episode in episodes if not episode.failed and episode not in failed]
    if others and others[0].success is None:
        others.sort(key=lambda episode: -episode.total)
    others = others[:most]
    if not (failed or others):
        return None
    return Cast(
        derive_seed(measurement.seed, NEW_STREAM),
        rows,
        [episode.number for episode in failed],
        [episode.number for episode in others],
        longest,
        max(episode.length for episode in (*failed, *others)),
        [episode.start for episode in all_failed],
    )
