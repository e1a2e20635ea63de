"""`ludus train` and `ludus resume`."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from ludus import ranks
from ludus.algorithms.summaries import algorithm_summaries
from ludus.commands.arguments import Flag, Verb, call, number_registry, take_flag, take_number, take_option
from ludus.commands.environments import presets_text
from ludus.commands.placing import joined, take_ray
from ludus.errors import ConfigError
from ludus.launchers import exit_code_when_stopped, find_launch
from ludus.presets import OPEN_KINDS, find_preset, preset_summaries
from ludus.ranges import read_seeds
from ludus.training.run_facts import make_labels

if TYPE_CHECKING:
    from ludus.config import TrainConfig

# Whose value may be named like a preset.
TAKES_TEXT = ("--run-dir", "--config", "--algo", "--data", "--from", "--name", "--tags", "--note")


def train(arguments: list[str]) -> None:
    name, rest = split_preset(arguments)
    if not name:
        print("usage: ludus train PRESET|gym:ID|… [settings] [--run-dir DIR] [--config FILE]\n\nPresets:")
        print(presets_text())
        print("\nEnvironments of other packages, by name: 'ludus list' shows how.")
        print("'ludus train PRESET --help' shows its settings, '--help-all' all of them.")
        sys.exit(0 if {"-h", "--help", "--help-all"} & set(arguments) else 2)
    _train(name, rest)


def split_preset(arguments: list[str], takes_text: Sequence[str] = TAKES_TEXT) -> tuple[str, list[str]]:
    """The preset, wherever it stands among the flags, and the rest; empty where there is none."""
    words = [i for i, word in enumerate(arguments) if not word.startswith("-")]
    alone = [i for i in words if i == 0 or not arguments[i - 1].startswith("-") or "=" in arguments[i - 1]]
    known = [i for i in words if is_preset(arguments[i]) and (i == 0 or arguments[i - 1] not in takes_text)]
    places = [i for i in alone if i in (0, *known)] or known or alone
    if not places:
        return "", arguments
    return arguments[places[0]], arguments[: places[0]] + arguments[places[0] + 1 :]


def is_preset(word: str) -> bool:
    return word in preset_summaries() or word.partition(":")[0] in OPEN_KINDS


def _train(name: str, rest: list[str]) -> None:
    rest, run_dir = take_option(rest, "--run-dir")
    rest, stop_at = take_number(rest, "--stop-at")
    rest, run_name = take_option(rest, "--name")
    rest, tags = take_option(rest, "--tags")
    rest, note = take_option(rest, "--note")
    labels = make_labels(run_name or "", tags or "", note or "")
    rest, at_once = take_number(rest, "--at-once")
    rest, cluster = take_ray(rest)
    rest, seeds = take_option(rest, "--seeds")
    chosen = None if seeds is None else read_seeds(seeds)
    config, given = read_settings(name, rest, "train")
    if chosen is not None:
        if "seed" in given:
            raise ConfigError("--seed and --seeds both say with which seed to train: give one of them.")
        if (launch := find_launch()) is not None and launch.ticket.size > 1:
            raise ConfigError("--seeds: torchrun and srun start the ranks of one training; give it one --seed.")
        from ludus.experiment import train_seeds

        with joined(cluster) as ray:
            outcome = train_seeds(
                name, chosen, run_dir, config, stop_at=stop_at, at_once=at_once, labels=labels, placer=ray
            )
        sys.exit(outcome.exit_code)
    from ludus.runs import train as train_preset

    with joined(cluster) as ray:
        place = ray.run_ranks if ray else None
        folder = train_preset(name, run_dir=run_dir, config=config, stop_at=stop_at, labels=labels, place=place)
    _exit_if_incomplete(folder, stop_at)


def read_settings(name: str, rest: list[str], verb: str) -> tuple["TrainConfig", list[str]]:
    """What a preset and all flags about its settings stand for; and the names of the settings that were given."""
    rest, algo = take_option(rest, "--algo")
    rest, file = take_option(rest, "--config")
    rest, trust = take_flag(rest, "--trust")
    rest, help_all = take_flag(rest, "--help-all")
    base, in_file = _base(name, algo or "", Path(file) if file is not None else None, rest, trust)
    if {"-h", "--help"} & set(rest):
        from ludus.commands.train_help import help_text

        print(help_text(find_preset(name), base))
        sys.exit(0)
    from ludus.commands.flags import settings_flags
    from ludus.settings import settle

    # Keyword arguments of an environment go past the flags' types: a file may give any values.
    kwargs = _kwargs_of(base)
    flags, given = (["--help"], []) if help_all else settings_flags(rest, base)
    config: TrainConfig = tyro.cli(
        tyro.conf.AvoidSubcommands[type(base)],  # type: ignore[misc]
        registry=_registry(),
        default=_with_kwargs(base, {}),
        args=flags,
        prog=f"ludus {verb} {name}",
        description=(
            f"{find_preset(name).summary} Another --algo ({', '.join(algorithm_summaries())}) brings settings and "
            "defaults of its own. Also: --config FILE (settings from a YAML file, before the flags), --trust "
            "(import the code that such a file names), --run-dir DIR (where the run goes), --name NAME, "
            "--tags a,b and --note TEXT (kept in the run), --stop-at STEP (save and stop there), --seeds 5, 0-4 "
            "or 3,7,11 (a run of each), --at-once N (of them), --ray [HOST:PORT] (processes on the nodes of a Ray "
            "cluster, by default the one that runs here). A section may be left out where no other has "
            "its name."
        ),
    )
    config = settle(config, given, in_file)
    return _with_kwargs(config, kwargs | _kwargs_of(config)), given


def _base(
    name: str, algo: str, file: Path | None, words: list[str], trust: bool
) -> tuple["TrainConfig", list[str]]:
    """What the flags, these words, are given over: the preset, or a file over it; and what the file asks for."""
    if file is None:
        return find_preset(name, algo).config, []
    from ludus.config_files import load_shared_config
    from ludus.settings import accept, algo_in, load_config, names_in
    from ludus.trust import require_trust_in_file

    typed = find_preset(name, algo).config
    require_trust_in_file(load_shared_config(file, typed), file, typed, words, trust)  # before it is imported
    base = find_preset(name, algo or algo_in(file)).config
    in_file = names_in(file)
    return accept(load_config(file, base), in_file), in_file


def _registry() -> Any:
    """Tables of any values are JSON on the command line; those of plain ones are names and values."""
    from ludus.config_files import read_table

    registry = number_registry()

    @registry.primitive_rule
    def json_rule(info: tyro.constructors.PrimitiveTypeInfo) -> Any:
        if info.type != dict[str, Any]:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar="JSON",
            instance_from_str=lambda words: read_table(words[0]),
            is_instance=lambda value: isinstance(value, dict),
            str_from_instance=lambda table: [json.dumps(table)],
        )

    @registry.primitive_rule
    def pairs_rule(info: tyro.constructors.PrimitiveTypeInfo) -> Any:
        if info.type != dict[str, bool | int | float | str]:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs="*",
            metavar="[NAME VALUE]…",
            instance_from_str=_read_pairs,
            is_instance=lambda value: isinstance(value, dict),
            str_from_instance=lambda table: [str(part) for pair in table.items() for part in pair],
        )

    return registry


def _read_pairs(words: list[str]) -> dict[str, bool | int | float | str]:
    """Names and values in turn. `5k` is text here: nobody said that a number is wanted."""
    if len(words) % 2:
        raise ValueError(f"names and values in turn are wanted, and {words[-1]!r} has no value")
    return {name: _read_plain(value) for name, value in zip(words[::2], words[1::2], strict=True)}


def _read_plain(text: str) -> bool | int | float | str:
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _kwargs_of(config: "TrainConfig") -> dict[str, Any]:
    return dict(getattr(config.env, "kwargs", {}))


def _with_kwargs(config: "TrainConfig", kwargs: dict[str, Any]) -> "TrainConfig":
    if not hasattr(config.env, "kwargs"):
        return config
    changes: dict[str, Any] = {"kwargs": kwargs}
    return replace(config, env=replace(config.env, **changes))


def resume(arguments: list[str]) -> None:
    def arguments_of(
        run: tyro.conf.Positional[Path],
        total_steps: int = 0,
        stop_at: int = 0,
        device: str = "",
        procs: int = 0,
        at_once: int = 0,
        trust: Annotated[bool, Flag] = False,
        ray: str = "",
    ) -> tuple[Path, int, int, str, int, int, bool, str]:
        """Go on with a run, exactly where it was; with several seeds or a sweep, with all that is not finished.

        Args:
            run: Folder of a run, seeds or sweep; RUN@100000 or RUN@best goes back and sets aside what came later.
            total_steps: Train to this many steps instead of those planned.
            stop_at: Save and stop at the first iteration that reaches this step; schedules stay as planned.
            device: Go on here instead: cpu or cuda. All is kept but the random streams, which begin anew.
            procs: Go on with so many processes instead, which share the run's environments out anew. What was
                learned is kept; episodes begin anew.
            at_once: Of several runs, how many at once; by default one a core, if memory suffices.
            trust: Import the code that the run names, though you did not train it on this machine.
            ray: On the nodes of a Ray cluster, HOST:PORT; without a value, of the one that runs here.
        """
        return run, total_steps, stop_at, device, procs, at_once, trust, ray

    arguments, cluster = take_ray(arguments)
    run, total_steps, stop_at, device, procs, at_once, trust, _ = call(arguments_of, arguments, "ludus resume")
    from ludus.experiment import is_experiment, resume_seeds
    from ludus.runs import resume as resume_run
    from ludus.training.run_folder import is_sweep

    if is_sweep(run):
        from ludus.sweeping.driving import Means, resume_sweep

        if total_steps or stop_at or device or procs:
            raise ConfigError(
                f"A sweep goes on as it was planned; 'ludus sweep {run} --trials N' gives it more trials."
            )
        with joined(cluster) as ray:
            outcome = resume_sweep(run, Means(at_once, trust=trust, placer=ray))
        sys.exit(outcome.exit_code)
    if is_experiment(run):
        if procs:
            raise ConfigError("--procs: give it with one seed's run, not with the folder of all.")
        with joined(cluster, device) as ray:
            seeds = resume_seeds(run, total_steps, stop_at, device, trust, at_once, placer=ray)
        sys.exit(seeds.exit_code)

    overrides: dict[str, Any] = {"loop.total_steps": total_steps, "loop.epochs": 0} if total_steps else {}
    overrides |= {"device": device} if device else {}
    overrides |= {"procs": procs} if procs else {}
    with joined(cluster, device) as ray:
        place = ray.run_ranks if ray else None
        folder = resume_run(run, overrides=overrides, trust=trust, stop_at=stop_at, place=place)
    _exit_if_incomplete(folder, stop_at)


def _exit_if_incomplete(folder: Path, stop_at: int) -> None:
    """A run that stopped where it was told to has done what was asked: a scheduler must not start it again.

    Rank 0 speaks for all: the others end while it still measures the policy.
    """
    from ludus.run_end import reached_its_end

    if ranks.is_first() and not reached_its_end(folder, stop_at):
        sys.exit(exit_code_when_stopped())


VERBS: dict[str, Verb] = {"train": train, "resume": resume}
