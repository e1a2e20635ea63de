"""`ludus sweep`: search for better settings."""

import os
import sys
from pathlib import Path
from typing import NoReturn

from ludus.commands.arguments import Verb, take_flag, take_number, take_option
from ludus.commands.placing import joined, take_ray
from ludus.commands.training import TAKES_TEXT, is_preset, read_settings, split_preset
from ludus.errors import ConfigError
from ludus.ranges import read_seeds, read_whole
from ludus.training.run_folder import is_sweep

_USAGE = """usage: ludus sweep PRESET|gym:ID|… --param NAME=RANGE … [options] [settings of train]
       ludus sweep FOLDER [--trials N] [--hours H] [--confirm-seeds N] …

Try settings, stop bad trials early, go on exactly with good ones, and confirm
the best on fresh seeds beside the preset's own settings.

  --param NAME=RANGE   what to search, once for each setting:
                       ppo.learning_rate=log(1e-4,1e-2)
                       ppo.gamma=uniform(0.95,0.999)
                       ppo.minibatches=choice(4,8,16)
                       'policy.hidden=choice(64 64,256 256)'
  --trials 40          how many to try; with --hours alone, as many as fit
  --seeds 1            of every trial, the same for all: 2, 0-4 or 3,7,11
  --total-steps STEPS  of a trial that comes to the end, and of the confirmation
  --rungs 3 --eta 3    stop at 1/9 and 1/3 of the steps; the best third goes on
                       from its checkpoint. --rungs 1: all are trained to the end
  --metric NAME        by default eval/success_rate, else eval/mean_reward
  --direction max|min  by default as the metric says
  --sampler tpe        or random; --sampler-seed 0
  --confirm 3          of the best trials, on --confirm-seeds 3 fresh seeds; 0: none
  --hours 1.5          ends the search in time to confirm
  --jobs N             processes at once; by default one a core
  --launcher "srun -n1 --exclusive"   starts every process, perhaps elsewhere
  --ray [HOST:PORT]    on the nodes of a Ray cluster, by default the one here
  --run-dir DIR, --name NAME, --trust, --quiet, and every setting of 'ludus train'

'ludus sweep FOLDER', or 'ludus resume FOLDER', goes on after Ctrl-C or a kill.
The page FOLDER/sweep.html has the best command, and which settings matter."""
_TAKES_TEXT = (*TAKES_TEXT, "--param", "--metric", "--direction", "--sampler", "--launcher")


def sweep(arguments: list[str]) -> None:
    if not arguments or {"-h", "--help"} & set(arguments):
        print(_USAGE)
        sys.exit(0 if arguments else 2)
    name, rest = split_preset(arguments, _TAKES_TEXT)
    if is_sweep(name) or (not is_preset(name) and (os.sep in name or os.path.isdir(name))):
        _resume(Path(name), rest)
    if not name:
        raise ConfigError(
            "Name what to train first: ludus sweep gym:CartPole-v1 --param ppo.gamma=uniform(0.9,0.999)"
        )
    _start(name, rest)


def _start(name: str, rest: list[str]) -> NoReturn:
    rest, cluster = take_ray(rest)
    rest, params = _take_all(rest, "--param")
    rest, run_dir = take_option(rest, "--run-dir")
    rest, run_name = take_option(rest, "--name")
    rest, seeds = take_option(rest, "--seeds")
    rest, trials = take_number(rest, "--trials")
    rest, rungs = take_number(rest, "--rungs")
    rest, eta = take_number(rest, "--eta")
    rest, metric = take_option(rest, "--metric")
    rest, direction = take_option(rest, "--direction")
    rest, sampler = take_option(rest, "--sampler")
    rest, sampler_seed = _take_count(rest, "--sampler-seed")
    rest, confirm = _take_count(rest, "--confirm")
    rest, confirm_seeds = take_number(rest, "--confirm-seeds")
    rest, hours, jobs, launcher = _take_means(rest)
    trust = "--trust" in rest
    config, given = read_settings(name, rest, "sweep")
    if "seed" in given:
        raise ConfigError("--seed: a sweep has --seeds, the same for all trials.")
    from ludus.sweeping.driving import Means, start_sweep
    from ludus.sweeping.plan import plan_of
    from ludus.training.run_facts import make_labels

    plan = plan_of(
        config, params, read_seeds(seeds or "1"), trials, hours=hours, rungs=rungs, eta=eta, metric=metric,
        direction=direction, sampler=sampler, sampler_seed=max(0, sampler_seed), confirm=confirm,
        confirm_seeds=confirm_seeds,
    )  # fmt: skip
    _refuse_two_places(launcher, cluster)
    labels = make_labels(run_name or "")
    with joined(cluster) as ray:
        means = Means(jobs, hours, launcher, trust, placer=ray)
        outcome = start_sweep(name, plan, run_dir, config, means=means, name=labels.name)
    sys.exit(outcome.exit_code)


def _resume(folder: Path, rest: list[str]) -> NoReturn:
    rest, cluster = take_ray(rest)
    rest, trust = take_flag(rest, "--trust")
    rest, trials = take_number(rest, "--trials")
    rest, confirm = _take_count(rest, "--confirm")
    rest, confirm_seeds = take_number(rest, "--confirm-seeds")
    rest, hours, jobs, launcher = _take_means(rest)
    if rest:
        raise ConfigError(
            f"{rest[0]!r} cannot be changed of a sweep that has begun. Only --trials, --hours, --jobs, --confirm, "
            "--confirm-seeds, --launcher, --ray and --trust can."
        )
    from ludus.sweeping.driving import Means, resume_sweep

    _refuse_two_places(launcher, cluster)
    with joined(cluster) as ray:
        means = Means(jobs, hours, launcher, trust, placer=ray)
        outcome = resume_sweep(folder, means, trials, confirm, confirm_seeds)
    sys.exit(outcome.exit_code)


def _refuse_two_places(launcher: str, cluster: str | None) -> None:
    if launcher and cluster is not None:
        raise ConfigError("--launcher and --ray both say where processes run. Give one of them.")


# Options ------------------------------------------------------------------------------------------
def _take_all(arguments: list[str], option: str) -> tuple[list[str], list[str]]:
    """All values of an option that may be given several times."""
    found: list[str] = []
    while True:
        arguments, value = take_option(arguments, option)
        if value is None:
            return arguments, found
        found.append(value)


def _take_count(arguments: list[str], option: str) -> tuple[list[str], int]:
    """A whole number, also 0; −1 where it is not given."""
    rest, text = take_option(arguments, option)
    try:
        number = -1 if text is None else read_whole(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}.") from None
    if text is not None and number < 0:
        raise ConfigError(f"{option} is {number}; it must be at least 0.")
    return rest, number


def _take_means(arguments: list[str]) -> tuple[list[str], float, int, str]:
    rest, text = take_option(arguments, "--hours")
    try:
        hours = float(text or 0)
    except ValueError:
        raise ConfigError(f"--hours is {text!r}; it must be a number: 1.5.") from None
    if text is not None and not hours > 0:
        raise ConfigError(f"--hours is {text}; it must be more than 0.")
    rest, jobs = take_number(rest, "--jobs")
    rest, launcher = take_option(rest, "--launcher")
    return rest, hours, jobs, launcher or ""


VERBS: dict[str, Verb] = {"sweep": sweep}
