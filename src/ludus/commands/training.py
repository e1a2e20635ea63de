"""`ludus train` and `ludus resume`."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from ludus.commands.arguments import Flag, Verb, take_flag, take_option
from ludus.commands.environments import presets_text

if TYPE_CHECKING:
    from ludus.config import TrainConfig

_EXIT_INTERRUPTED = 75  # "temporary failure": the run was saved and can be resumed


def train(arguments: list[str]) -> None:
    if not arguments or arguments[0].startswith("-"):
        print("usage: ludus train PRESET|gym:ID|… [--flags] [--run-dir DIR] [--config FILE]\n\nPresets:")
        print(presets_text())
        print("\nEnvironments of other packages, by name: 'ludus list' shows how.")
        print("\n'ludus train PRESET --help' shows every setting of a preset.")
        sys.exit(0 if arguments and arguments[0] in ("-h", "--help") else 2)
    _train(arguments[0], arguments[1:])


def _train(name: str, rest: list[str]) -> None:
    from ludus.algorithms.registry import algorithm_names
    from ludus.config_files import load_shared_config
    from ludus.presets import find_preset
    from ludus.runs import train as train_preset
    from ludus.settings import algo_in, load_config, names_in, refuse_foreign, settle
    from ludus.trust import require_trust_in_file

    rest, algo = take_option(rest, "--algo")
    rest, file = take_option(rest, "--config")
    rest, run_dir = take_option(rest, "--run-dir")
    rest, trust = take_flag(rest, "--trust")
    if file is not None:  # before anything is imported that it names
        typed = find_preset(name, algo or "").config
        require_trust_in_file(load_shared_config(Path(file), typed), Path(file), typed, trust)
        base = find_preset(name, algo or algo_in(Path(file))).config
        base = settle(load_config(Path(file), base), names_in(Path(file)))
    else:
        base = find_preset(name, algo or "").config
    # Keyword arguments of an environment go past the flags' types: a file may give any values.
    kwargs = _kwargs_of(base)
    refuse_foreign(base, _names_given(rest))  # settings of other algorithms, which the flags below do not know
    config: TrainConfig = tyro.cli(
        tyro.conf.AvoidSubcommands[type(base)],  # type: ignore[misc]
        registry=_registry(),
        default=_with_kwargs(base, {}),
        args=_with_short_names(rest, base),
        prog=f"ludus train {name}",
        description=(
            f"{find_preset(name).summary} Another --algo ({', '.join(algorithm_names())}) brings settings and "
            "defaults of its own. Also: --config FILE (settings from a YAML file, before the flags), --trust "
            "(import the code that such a file names), --run-dir DIR (where the run goes), and without their "
            f"section {_short_flags(base)} and whatever only one section has."
        ),
    )
    config = settle(config, _names_given(rest))
    folder = train_preset(name, run_dir=run_dir, config=_with_kwargs(config, kwargs | _kwargs_of(config)))
    _exit_if_incomplete(folder)


def _short_flags(config: "TrainConfig") -> str:
    """Those that this configuration has, of the loop and by another name."""
    from ludus.settings import short_names

    short = {name: full for name, full in short_names(config).items() if _has(config, full)}
    by_another_name = (*config.short_names.values(), "env.clips")
    known = [name for name, full in short.items() if full in (f"loop.{name}", *by_another_name)]
    return ", ".join(f"--{short.replace('_', '-')}" for short in known)


def _has(config: "TrainConfig", setting: str) -> bool:
    section, _, name = setting.partition(".")
    return hasattr(getattr(config, section, None), name)


def _registry() -> Any:
    """Settings that are tables of any values are JSON on the command line."""
    from ludus.config_files import read_table

    registry = tyro.constructors.ConstructorRegistry()

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

    return registry


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
        device: str = "",
        trust: Annotated[bool, Flag] = False,
    ) -> tuple[Path, int, str, bool]:
        """Go on with a run, exactly where it was.

        Args:
            run: Folder of the run; RUN@100000 or RUN@best goes back there and sets aside what came later.
            total_steps: Train to this many steps instead of those planned.
            device: Go on here instead: cpu or cuda. All is kept but the random streams, which begin anew.
            trust: Import the code that the run names, though you did not train it on this machine.
        """
        return run, total_steps, device, trust

    run, total_steps, device, trust = tyro.cli(arguments_of, args=arguments, prog="ludus resume")
    from ludus.runs import resume as resume_run

    overrides: dict[str, Any] = {"loop.total_steps": total_steps, "loop.epochs": 0} if total_steps else {}
    overrides |= {"device": device} if device else {}
    _exit_if_incomplete(resume_run(run, overrides=overrides, trust=trust))


def _exit_if_incomplete(folder: Path) -> None:
    from ludus.training.run_folder import FINAL, pointed_by

    if pointed_by(folder / FINAL) is None:
        sys.exit(_EXIT_INTERRUPTED)


def _names_given(arguments: list[str]) -> list[str]:
    """Of the flags: `ppo.learning_rate` for `--ppo.learning-rate 1e-3`."""
    flags = [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]
    return [flag.removeprefix("--").replace("-", "_") for flag in flags]


def _with_short_names(arguments: list[str], config: "TrainConfig") -> list[str]:
    """`--total-steps` for `--loop.total-steps`, and so on."""
    from ludus.settings import short_names

    known = short_names(config)

    def full(argument: str) -> str:
        flag, equals, value = argument.partition("=")
        name = known.get(flag.removeprefix("--").replace("-", "_")) if flag.startswith("--") else None
        return argument if name is None else f"--{name.replace('_', '-')}{equals}{value}"

    return [full(argument) for argument in arguments]


VERBS: dict[str, Verb] = {"train": train, "resume": resume}
