"""The Python face of Ludus: `ludus.train` and the `Run` that it returns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from ludus import run_pages, runs
from ludus.config import TrainConfig
from ludus.envs.config import name_in
from ludus.envs.given import give_again, name_of_env
from ludus.envs.vec import VecEnv
from ludus.errors import ConfigError, did_you_mean
from ludus.experiment import final_measurements, is_experiment, resume_seeds, seeds_of, train_seeds
from ludus.policies.factory import name_of_network
from ludus.policies.policy import MakeNetwork, Policy
from ludus.ranges import read_seeds
from ludus.saved_run import holds_policy, load, run_config, run_folder
from ludus.show.console import Console
from ludus.show.jsonl import read_metrics
from ludus.training.address import read_address
from ludus.training.callbacks import Callback
from ludus.training.run_facts import labels_in, make_labels, read_facts, relabel
from ludus.training.run_folder import is_sweep

Environment = str | type | Callable[..., Any] | gym.Env | VectorEnv | VecEnv
"""What can be trained in: a name, or an object that is an environment or makes one."""

if TYPE_CHECKING:
    _Path = Path
else:
    _Path = type(Path())  # Python 3.11 has no other way to a path of one's own


@overload
def train(environment: Environment, /, *, seeds: int | str | Sequence[int], **settings: Any) -> Experiment: ...


@overload
def train(
    environment: Environment,
    /,
    run_dir: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    console: Console | None = None,
    config: TrainConfig | None = None,
    overrides: dict[str, Any] | None = None,
    network: MakeNetwork | str | None = None,
    network_kwargs: dict[str, Any] | None = None,
    quiet: bool = False,
    stop_at: float = 0,
    name: str = "",
    tags: str | Sequence[str] = (),
    note: str = "",
    seeds: None = None,
    **settings: Any,
) -> Run: ...


def train(
    environment: Environment,
    /,
    run_dir: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    console: Console | None = None,
    config: TrainConfig | None = None,
    overrides: dict[str, Any] | None = None,
    network: MakeNetwork | str | None = None,
    network_kwargs: dict[str, Any] | None = None,
    quiet: bool = False,
    stop_at: float = 0,
    name: str = "",
    tags: str | Sequence[str] = (),
    note: str = "",
    seeds: int | str | Sequence[int] | None = None,
    at_once: int = 0,
    **settings: Any,
) -> Run | Experiment:
    """Train a policy, and return the run; with `seeds` a policy with each seed, and return the experiment.

    `environment`: the name of a preset, `"gym:CartPole-v1"`, a class of Gymnasium environments, a function that
    makes one, an instance (copies of it are trained in), a Gymnasium vector environment, or a `VecEnv` of Ludus.
    A PettingZoo environment is taken in the same ways.

    `settings` go by their names in `ludus train PRESET --help`. One that only one section has needs no section:
    `ludus.train("gym:CartPole-v1", seed=1, total_steps=2e4, learning_rate=1e-3)`. Others are dicts or dotted:
    `eval={"every": 5_000}`, `overrides={"eval.every": 5_000}`. `algo` is an algorithm's name or a
    `ludus.Algorithm`; `config` replaces the preset's own settings.

    `network`: a `torch.nn.Module` class of your own, made of the shape of one observation and `network_kwargs`.
    `run_dir`: the folder of the run; by default a new one under `runs/`, called `name` where that is given.
    `tags` and `note` are kept in the run, and shown by `ludus runs`. `quiet`: print warnings alone.
    `stop_at`: save and stop at the first iteration that reaches this step; `run.resume()` goes on exactly.

    `seeds`: 5 (0 to 4), "3,7,11" or a list: each is trained in a process of its own, `at_once` as many as cores
    and memory allow. A seed that fails does not end the others.
    """
    labels = make_labels(name, tags, note)
    preset = environment if isinstance(environment, str) else name_of_env(environment)
    all_given = settings | (overrides or {})
    given = {key: str(read_address(v)) if isinstance(v, Run) else v for key, v in all_given.items()}
    if network is not None:
        given |= {"policy.network": name_of_network(network), "policy.network_kwargs": network_kwargs or {}}
    if seeds is None:
        console = _silent(console, quiet)
        return Run(runs.train(preset, run_dir, callbacks, console, config, given, _whole(stop_at), labels))
    if callbacks or console is not None or "seed" in given:
        raise ConfigError(
            "With seeds= there is no seed=, callbacks= or console=: every seed is a process of its own."
        )
    chosen = read_seeds(seeds)
    outcome = train_seeds(preset, chosen, run_dir, config, given, _whole(stop_at), at_once, quiet, labels)
    return Experiment(outcome.folder)


def resume(
    run: str | Path,
    callbacks: Sequence[Callback] = (),
    console: Console | None = None,
    overrides: dict[str, Any] | None = None,
    trust: bool = False,
    env: Environment | None = None,
    quiet: bool = False,
    stop_at: float = 0,
) -> Run:
    """Go on with a run exactly where it was: from its newest intact checkpoint, or from its beginning.

    `overrides` changes settings: `{"loop.total_steps": 200_000}`. `trust`: import the code that the run names,
    although it was trained by another user or elsewhere. `env`: the environment again, where it was handed over as
    an object that has no name. `quiet`: print warnings alone. `stop_at` as in `ludus.train`.
    """
    if env is not None:
        _hand_over(run_folder(run), env)
    if is_sweep(run):
        raise ConfigError(f"{run} is a sweep. Go on with: ludus.Sweep({str(run)!r}).resume()")
    if is_experiment(run):
        raise ConfigError(f"{run} holds several seeds. Go on with: ludus.Experiment({str(run)!r}).resume()")
    return Run(runs.resume(run, callbacks, _silent(console, quiet), overrides, trust, _whole(stop_at)))


def _silent(console: Console | None, quiet: bool) -> Console | None:
    return Console("quiet") if quiet and console is None else console


def _whole(step: float) -> int:
    """2e4 is a step as well."""
    if isinstance(step, bool) or step != int(step):
        raise ConfigError(f"{step!r} is not a number of steps.")
    return int(step)


class Curve(NamedTuple):
    """A metric over the steps of a run: `plt.plot(*run.metrics["eval/mean_reward"])`."""

    steps: np.ndarray  # [n]
    values: np.ndarray  # [n], NaN where it was not a number


class Curves(dict[str, Curve]):
    """All that was measured of a run, by name; a name that is not there is answered with the nearest."""

    def __missing__(self, name: str) -> Curve:
        nearest = did_you_mean(str(name), self) or f" It has {', '.join(sorted(self)) or 'none yet'}."
        raise KeyError(f"The run has no metric {name!r}.{nearest}")


class Run(_Path):
    """A run: the path of its folder, and what can be done with it.

    `ludus.train` and `ludus.resume` return one; `ludus.Run("runs/cartpole")` opens one that is there. It is a
    `pathlib.Path`, so it goes wherever a path does: `run / "metrics.jsonl"`, `open(run / "config.yaml")`.

    An address may name one of its policies, "runs/cartpole@final"; it is meant where nobody says `which`. Else
    that is the best. `trust` as in `ludus.resume`. `env`: the environment, where it was handed over as an object
    without a name.
    """

    _trust = False
    which = ""  # of its checkpoints; empty: the best, or to go on the newest

    def __new__(cls, run: str | Path, trust: bool = False, env: Environment | None = None) -> Run:
        folder, which = read_address(run)
        self = super().__new__(cls, folder)
        self._trust, self.which = trust, which
        if env is not None:
            _hand_over(folder, env)
        return self

    def __init__(self, run: str | Path, trust: bool = False, env: Environment | None = None) -> None:
        if hasattr(_Path, "with_segments"):  # from Python 3.12 on a path is made here
            super().__init__(read_address(run).folder)  # type: ignore[call-arg]

    def with_segments(self, *parts: Any) -> Path:
        """What lies in a run, or beside it, is a plain path."""
        return Path(*parts)

    if sys.version_info < (3, 12):  # which makes such paths in another way

        @classmethod
        def _from_parsed_parts(cls, *parsed: Any) -> Path:
            made: Path = _Path._from_parsed_parts(*parsed)  # type: ignore[attr-defined]
            return made

    def __reduce__(self) -> Any:
        return type(self), (str(read_address(self)), self._trust)  # a plain path would be made of its parts

    @property
    def path(self) -> Path:
        """Its folder, as a plain path."""
        return Path(self)

    @property
    def metrics(self) -> Curves:
        """Everything that was measured, by name: a curve of steps and values of each (docs/metrics.md)."""
        rows = read_metrics(self / "metrics.jsonl")
        points: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            for name, value in row.items():
                if name != "step":
                    points.setdefault(name, []).append((row["step"], value))
        return Curves(
            (name, Curve(np.array([step for step, _ in told], np.int64), np.array([value for _, value in told])))
            for name, told in points.items()
        )

    @property
    def tags(self) -> tuple[str, ...]:
        """Words to find it by, in `ludus runs --tag`; they can be set."""
        return labels_in(read_facts(self.path)).tags

    @tags.setter
    def tags(self, tags: str | Sequence[str]) -> None:
        relabel(self.path, lambda labels: labels._replace(tags=make_labels(tags=tags).tags))

    @property
    def note(self) -> str:
        """Why it was trained, or what came out; it can be set."""
        return labels_in(read_facts(self.path)).note

    @note.setter
    def note(self, note: str) -> None:
        relabel(self.path, lambda labels: labels._replace(note=note))

    def policy(self, which: str | int = "", network: MakeNetwork | None = None) -> Policy:
        """A policy of the run, to act with: "best", "final", or that of a step, 100_000.

        `network`: the class of a network of your own, where it has no name to find it by.
        """
        return load(self._at(which), self._trust, network)

    def evaluate(
        self,
        episodes: int = 100,
        deterministic: bool = True,
        seed: int | None = None,
        which: str | int = "",
    ) -> dict[str, float]:
        """How good a policy is on starts that training never used: "mean_reward", "success_rate" and so on.

        With `deterministic=False` actions are sampled. A run that learns a reward alone is measured on the
        recorded episodes held out.
        """
        if not holds_policy(self.path):
            from ludus.rewards import held_out_metrics

            return held_out_metrics(self.path)
        return runs.evaluate_run(self._at(which), episodes, deterministic, seed, self._trust).summary()

    def report(self) -> Path:
        """Write report.html, one page with curves, evaluations and a replay; the path of it.

        Of a run that was opened as "runs/cartpole@final" the page is report@final.html.
        """
        return run_pages.write_run_report(self, self._trust)

    def play(self, which: str | int = "", port: int = 8080, seconds: float | None = None) -> None:
        """Watch a policy live in the browser, until Ctrl-C or for so many `seconds`."""
        run_pages.play_run(self._at(which), port, seconds, trust=self._trust)

    def video(
        self,
        file: str | Path | None = None,
        which: str | int = "",
        episodes: int = 4,
        failures: bool = False,
        fps: float | None = None,
        size: str = "640x480",
        seed: int | None = None,
        clip: str = "",
    ) -> Path:
        """Write a film of a policy, MP4 or GIF, for any environment that can be drawn; the path of it.

        By default that is video.mp4 in the run, or video.gif without ffmpeg. `failures`: only episodes that
        failed. The others as in `ludus video --help`.
        """
        from ludus.filming import film_run

        at = self._at(which)
        return film_run(
            at, None if file is None else Path(file), episodes, failures, fps, size, seed, clip, self._trust
        )

    def export(self, file: str | Path, which: str | int = "", clip: str = "", clip_as_input: bool = False) -> Path:
        """Write a policy as ONNX, normaliser and action bounds inside; it is compared with torch first.

        `clip` and `clip_as_input`, of a body that follows clips, as in `ludus export --help`.
        """
        from ludus.export import export_onnx

        export_onnx(self._at(which), file, self._trust, clip, clip_as_input)
        return Path(file)

    def resume(
        self,
        total_steps: float | None = None,
        callbacks: Sequence[Callback] = (),
        console: Console | None = None,
        overrides: dict[str, Any] | None = None,
        quiet: bool = False,
        stop_at: float = 0,
    ) -> Run:
        """Go on where the training stopped, or beyond its end, to `total_steps`.

        A run that was opened as "runs/cartpole@100000" goes back there first: what came after is set aside.
        `quiet`: print warnings alone. `stop_at` as in `ludus.train`.
        """
        more = {} if total_steps is None else {"loop.total_steps": total_steps, "loop.epochs": 0}
        console = _silent(console, quiet)
        overrides = more | (overrides or {})
        folder = runs.resume(self, callbacks, console, overrides, self._trust, _whole(stop_at))
        return Run(folder, self._trust) if self.which else self

    def _at(self, which: str | int) -> Path:
        """The address of a policy of the run, which all that is done with one takes."""
        which = self.which if which == "" else which
        return Path(f"{self.path}@{which}") if which != "" else self.path


class Experiment:
    """Several seeds of one training: its folder, and a `Run` for each seed.

    `ludus.train(…, seeds=5)` returns one; `ludus.Experiment("runs/cartpole")` opens one that is there. It goes
    wherever a path does.
    """

    def __init__(self, folder: str | Path, trust: bool = False) -> None:
        self.path, self._trust = Path(folder), trust
        seeds_of(self.path)

    def __fspath__(self) -> str:
        return str(self.path)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def __repr__(self) -> str:
        return f"Experiment({str(self.path)!r})"

    @property
    def seeds(self) -> list[int]:
        return [*seeds_of(self.path)]

    def __len__(self) -> int:
        return len(self.seeds)

    def __iter__(self) -> Iterator[Run]:
        """The run of every seed."""
        return (Run(folder, self._trust) for folder in seeds_of(self.path).values())

    @property
    def results(self) -> dict[int, dict[str, float]]:
        """By seed, of those that are finished: the best policy on new starts, "mean_reward" and so on."""
        return {seed: measured.result for seed, measured in final_measurements(self.path).items()}

    def resume(
        self, total_steps: float = 0, stop_at: float = 0, at_once: int = 0, quiet: bool = False
    ) -> Experiment:
        """Go on exactly with every seed that is not finished, or beyond its end, to `total_steps`."""
        resume_seeds(self.path, _whole(total_steps), _whole(stop_at), "", self._trust, at_once, quiet)
        return self


def _hand_over(folder: Path, env: Environment) -> None:
    """Tell what the run's environment is, where this program alone can know it."""
    give_again(name_in(run_config(folder).env), env)
