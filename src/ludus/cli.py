"""The command `ludus`. Each verb is a function here; what it does lives in `runs.py`."""

import errno
import json
import os
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

# Before torch and MuJoCo load: waiting threads sleep instead of taking a core from the simulation.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import tyro

from ludus import __version__
from ludus.config import SHORT_NAMES, TrainConfig, algo_in, load_config, names_in, read_table, settle
from ludus.errors import ConfigError, LudusError, did_you_mean, plain_text
from ludus.training.run_folder import FINAL, pointed_by
from ludus.trust import require_trust_in_file

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO,
                errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)  # fmt: skip
_python_format = warnings.formatwarning
_EXIT_INTERRUPTED = 75  # "temporary failure": the run was saved and can be resumed
_TEMPLATE = """usage: ludus COMMAND …

Train policies with one loop, from two CPU cores to a GPU.

  train PRESET|gym:ID|…  train a policy        ludus train kuka-pick-place
  resume RUN             go on with a run      ludus resume runs/kuka-pick-place/…
  eval RUN               measure its policy    ludus eval RUN --episodes 200 --json
  play RUN               watch it in the browser
  report RUN             curves and 3-D replay in one HTML page
  export RUN FILE.onnx   the policy, normaliser inside, for other programs
  data info FILE…        what recorded data holds, and what is suspicious about it
  motions import|check … clips of motion for the humanoid: bring them here, look at them
  record RUN|scripted    demonstrations of the KUKA task, successes and failures
  label FILE --run RUN   a copy of recorded data with a learned reward in it
  list                   presets
  check ENV              what is wrong with an environment
  doctor                 what this machine and installation can do

'ludus COMMAND --help' tells more. Version {version}."""

if TYPE_CHECKING:
    from ludus.presets import Preset

Flag = tyro.conf.FlagCreatePairsOff


def main() -> None:
    """Entry point: a user's mistake is one sentence and exit code 2, never a stack trace."""
    threading.excepthook = _report_thread
    warnings.formatwarning = _format_warning
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_TEMPLATE.format(version=__version__))
        sys.exit(0)
    if arguments[0] in ("-V", "--version"):
        print(f"ludus {__version__}")
        sys.exit(0)
    verb, rest = arguments[0], arguments[1:]
    if verb not in COMMANDS:
        _fail(f"There is no command {verb!r}.{did_you_mean(verb, COMMANDS)} 'ludus --help' shows them all.")
    try:
        COMMANDS[verb](rest)
    except LudusError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe has gone
        sys.exit(0)
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        _fail(f"{error.filename or 'A file'} cannot be used: {error.strerror}.")


def _report_thread(failure: threading.ExceptHookArgs) -> None:
    """TensorBoard's writer hands its failure over at the next write, which reports it: no stack trace besides."""
    if type(failure.thread).__name__ != "_AsyncWriterThread":
        threading.__excepthook__(failure)


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A sentence alone, where it is one of Ludus': its place in the code is nothing to a user."""
    if Path(filename).is_relative_to(Path(__file__).parent):
        return f"WARNING: {plain_text(str(message), keep_lines=True)}\n"
    return _python_format(message, category, filename, lineno, line)


def _fail(message: str) -> None:
    print(f"ludus: {plain_text(message, keep_lines=True)}", file=sys.stderr)
    sys.exit(2)


# train and resume -------------------------------------------------------------------------------
def _train(arguments: list[str]) -> None:
    """Train a preset, or any environment by its name."""
    from ludus.presets import all_presets, find_preset
    from ludus.runs import train

    if not arguments or arguments[0].startswith("-"):
        print("usage: ludus train PRESET|gym:ID|… [--flags] [--run-dir DIR] [--config FILE]\n\nPresets:")
        _print_presets(list(all_presets().values()))
        print("\nEnvironments of other packages, by name: 'ludus list' shows how.")
        print("\n'ludus train PRESET --help' shows every setting of a preset.")
        sys.exit(0 if arguments and arguments[0] in ("-h", "--help") else 2)
    name, rest = arguments[0], arguments[1:]
    rest, algo = _take_option(rest, "--algo")
    rest, file = _take_option(rest, "--config")
    base = find_preset(name, algo or (algo_in(Path(file)) if file else "")).config
    rest, run_dir = _take_option(rest, "--run-dir")
    rest, trust = _take_flag(rest, "--trust")
    if file is not None:
        typed, base = base, settle(load_config(Path(file), base), names_in(Path(file)))
        require_trust_in_file(base, Path(file), typed, trust)
    # Keyword arguments of an environment go past the flags' types: a file may give any values.
    kwargs = _kwargs_of(base)
    config = tyro.cli(
        tyro.conf.AvoidSubcommands[TrainConfig],
        registry=_registry(),
        default=_with_kwargs(base, {}),
        args=_with_short_names(rest),
        prog=f"ludus train {name}",
        description=(
            f"{find_preset(name).summary} --algo sac, td3 or dqn brings its own defaults. Also: --config FILE "
            "(settings from a YAML file, before the flags), --trust (import the code that such a file names), "
            "--run-dir DIR (where the run goes), and without their "
            f"section {', '.join('--' + short.replace('_', '-') for short in SHORT_NAMES)}."
        ),
    )
    config = settle(config, _names_given(rest))
    folder = train(name, run_dir=run_dir, config=_with_kwargs(config, kwargs | _kwargs_of(config)))
    _exit_if_incomplete(folder)


def _registry() -> Any:
    """Settings that are tables of any values are JSON on the command line."""
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


def _kwargs_of(config: TrainConfig) -> dict[str, Any]:
    return dict(getattr(config.env, "kwargs", {}))


def _with_kwargs(config: TrainConfig, kwargs: dict[str, Any]) -> TrainConfig:
    if not hasattr(config.env, "kwargs"):
        return config
    changes: dict[str, Any] = {"kwargs": kwargs}
    return replace(config, env=replace(config.env, **changes))


def _resume(arguments: list[str]) -> None:
    """Go on with a run from its newest intact checkpoint."""
    from ludus.runs import resume

    def arguments_of(
        run: tyro.conf.Positional[Path],
        total_steps: int = 0,
        device: str = "",
        trust: Annotated[bool, Flag] = False,
    ) -> tuple[Path, int, str, bool]:
        """Go on with a run, exactly where it was.

        Args:
            run: Folder of the run.
            total_steps: Train to this many steps instead of those planned.
            device: Go on here instead: cpu or cuda. All is kept but the random streams, which begin anew.
            trust: Import the code that the run names, though you did not train it on this machine.
        """
        return run, total_steps, device, trust

    run, total_steps, device, trust = tyro.cli(arguments_of, args=arguments, prog="ludus resume")
    overrides: dict[str, Any] = {"loop.total_steps": total_steps, "loop.epochs": 0} if total_steps else {}
    overrides |= {"device": device} if device else {}
    _exit_if_incomplete(resume(run, overrides=overrides, trust=trust))


def _exit_if_incomplete(folder: Path) -> None:
    if pointed_by(folder / FINAL) is None:
        sys.exit(_EXIT_INTERRUPTED)


def _take_option(arguments: list[str], option: str) -> tuple[list[str], str | None]:
    """Remove `option VALUE` or `option=VALUE` from the arguments."""
    for i, argument in enumerate(arguments):
        if argument.startswith(f"{option}="):
            return arguments[:i] + arguments[i + 1 :], argument.split("=", 1)[1]
        if argument == option:
            if i + 1 == len(arguments):
                raise ConfigError(f"{option} needs a value.")
            return arguments[:i] + arguments[i + 2 :], arguments[i + 1]
    return arguments, None


def _take_flag(arguments: list[str], flag: str) -> tuple[list[str], bool]:
    return [argument for argument in arguments if argument != flag], flag in arguments


def _names_given(arguments: list[str]) -> list[str]:
    """Of the flags: `ppo.learning_rate` for `--ppo.learning-rate 1e-3`."""
    flags = [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]
    return [flag.removeprefix("--").replace("-", "_") for flag in flags]


def _with_short_names(arguments: list[str]) -> list[str]:
    """`--total-steps` for `--loop.total-steps`, and so on."""

    def full(argument: str) -> str:
        flag, equals, value = argument.partition("=")
        name = SHORT_NAMES.get(flag.removeprefix("--").replace("-", "_")) if flag.startswith("--") else None
        return argument if name is None else f"--{name.replace('_', '-')}{equals}{value}"

    return [full(argument) for argument in arguments]


# Looking at a run -------------------------------------------------------------------------------
def _eval(arguments: list[str]) -> None:
    def command(
        run: tyro.conf.Positional[Path],
        episodes: int = 100,
        stochastic: Annotated[bool, Flag] = False,
        json: Annotated[bool, Flag] = False,
        seed: int | None = None,
        clip: str = "",
        randomization: str = "",
        trust: Annotated[bool, Flag] = False,
    ) -> None:
        """Measure a run's best policy on starts that neither training nor the choice of the best has used.

        A humanoid that follows clips plays every one of them from fixed starts, the same by which the best was
        chosen; a table tells how each went, the worst first.

        Args:
            run: Folder of the run.
            episodes: How many episodes; not used where the starts are fixed, which are all played once.
            stochastic: Sample actions instead of taking the most likely ones.
            json: Print the result as JSON; the table is in its "rows".
            seed: Of the starts; by default the run's own evaluation stream.
            clip: Clips to follow instead of those trained on: names, files or folders, with commas between.
            randomization: Of the simulations, instead of the run's own: off, a preset that has one, or JSON.
            trust: Import the code that the run names, though you did not train it on this machine.
        """
        _print_evaluation(run, episodes, stochastic, json, seed, clip, randomization, trust)

    tyro.cli(command, args=arguments, prog="ludus eval")


def _print_evaluation(
    run: Path,
    episodes: int,
    stochastic: bool,
    as_json: bool,
    seed: int | None,
    clips: str,
    randomization: str,
    trust: bool,
) -> None:
    from ludus.logging.clip_table import clip_lines
    from ludus.logging.text import evaluation_line
    from ludus.runs import measure_run, run_config, run_folder

    if run_config(run_folder(run)).algo == "reward":
        from ludus.rewards import held_out_metrics

        metrics = held_out_metrics(run)
        told = {name.removeprefix("reward/"): value for name, value in metrics.items()}
        print(json.dumps(told) if as_json else f"held-out episodes: {evaluation_line(metrics)}")
        return
    result, rows = measure_run(run, episodes, not stochastic, seed, clips, trust, randomization or None)
    summary = result.summary()
    if as_json:
        table = {"rows": rows} if rows else {}
        print(json.dumps({"success_rate": None, **summary, **table}))  # the first is there for every environment
        return
    line = evaluation_line({f"eval/{name}": value for name, value in summary.items()})
    print(f"{'sampled' if stochastic else 'deterministic'} actions: {line}")
    if rows:
        print("", *clip_lines(rows), sep="\n")


def _play(arguments: list[str]) -> None:
    from ludus.runs import play_run

    def command(
        run: tyro.conf.Positional[Path],
        port: int = 8080,
        seconds: float | None = None,
        clip: str = "",
        beside: float = 0.0,
        trust: Annotated[bool, Flag] = False,
    ) -> None:
        """Watch a run's best policy live in the browser.

        A humanoid that follows clips is shown with the ghost of what it follows, clip after clip.

        Args:
            run: Folder of the run.
            port: Of the viewer; the next free one if it is taken.
            seconds: Stop after so long; by default at Ctrl-C.
            clip: Clips to follow: names, files or folders, with commas between; by default those trained on.
            beside: Metres between a humanoid and its ghost; 0 lays one over the other.
            trust: Import the code that the run names, though you did not train it on this machine.
        """
        play_run(run, port, seconds, clip, beside, trust)

    tyro.cli(command, args=arguments, prog="ludus play")


def _report(arguments: list[str]) -> None:
    from ludus.runs import write_run_report

    def command(run: tyro.conf.Positional[Path], trust: Annotated[bool, Flag] = False) -> None:
        """Write report.html, one self-contained page: curves, evaluations, configuration and a 3-D replay.

        Args:
            run: Folder of the run.
            trust: Import the code that the run names, though you did not train it on this machine.
        """
        print(write_run_report(run, trust))

    tyro.cli(command, args=arguments, prog="ludus report")


def _export(arguments: list[str]) -> None:
    from ludus.export import export_onnx

    def command(
        run: tyro.conf.Positional[Path], file: tyro.conf.Positional[Path], trust: Annotated[bool, Flag] = False
    ) -> None:
        """Write a run's best policy as ONNX, the normaliser inside; checked against torch before it is written.

        Args:
            run: Folder of the run.
            file: Where to, ending in .onnx.
            trust: Import the code that the run names, though you did not train it on this machine.
        """
        difference = export_onnx(run, file, trust)
        print(f"{file}: largest difference to torch {difference:.1e}")

    tyro.cli(command, args=arguments, prog="ludus export")


# Recorded data ----------------------------------------------------------------------------------
def _data(arguments: list[str]) -> None:
    from ludus.data.commands import data

    data(arguments)


def _motions(arguments: list[str]) -> None:
    from ludus.motion_commands import motions

    motions(arguments)


def _record(arguments: list[str]) -> None:
    from ludus.data.commands import record

    record(arguments)


def _label(arguments: list[str]) -> None:
    from ludus.rewards import label, label_key

    def command(
        data: tyro.conf.Positional[Path],
        run: Path,
        out: Path | None = None,
        head: Literal["reward", "progress", "success"] = "reward",
    ) -> None:
        """Write a copy of recorded data with a run's learned reward in it, as the dataset learned_rewards.

        Train on it with --data COPY --data.reward learned_rewards.

        Args:
            data: HDF5 file in LIBERO's or robomimic's layout.
            run: Folder of a run that learned a reward.
            out: The copy; by default FILE_labelled.hdf5 beside the file.
            head: What of it to write: the reward, or how far the job has come, or how likely it succeeds.
        """
        target, episodes = label(str(data), run, out, head)
        use = f"--data {target} --data.reward {label_key(head)}"
        print(f"{target}: {episodes} episodes labelled. Train on them with {use}")

    tyro.cli(command, args=arguments, prog="ludus label")


# The installation -------------------------------------------------------------------------------
def _list(arguments: list[str]) -> None:
    from ludus.presets import OPEN_KINDS, all_presets

    def command() -> None:
        """Show all presets."""
        _print_presets(list(all_presets().values()))
        print("\nAnd by name:")
        for _, example, what in OPEN_KINDS.values():
            print(f"  ludus train {example}\n      {what}")

    tyro.cli(command, args=arguments, prog="ludus list")


def _print_presets(presets: "list[Preset]") -> None:
    width = max(len(preset.name) for preset in presets)
    for preset in presets:
        print(f"  {preset.name:{width}}  {preset.summary}")


def _check(arguments: list[str]) -> None:
    from ludus.envs import make_vec_env
    from ludus.envs.check import check_env, format_findings
    from ludus.presets import find_preset

    def command(env: tyro.conf.Positional[str], steps: int = 200) -> None:
        """Say what is wrong with an environment, and what to do about it.

        Args:
            env: A preset, gym:ID or another name that 'ludus list' shows.
            steps: How long to play with it.
        """
        config = find_preset(env).config.env
        findings = check_env(lambda n: make_vec_env(replace(config, num_envs=n), n), steps=steps)
        print(format_findings(findings))
        sys.exit(1 if any(finding.level == "error" for finding in findings) else 0)

    tyro.cli(command, args=arguments, prog="ludus check")


def _doctor(arguments: list[str]) -> None:
    from ludus.doctor import diagnose

    def command() -> None:
        """Say what this machine and installation can do, and what is missing for the rest."""
        sys.exit(0 if diagnose() else 1)

    tyro.cli(command, args=arguments, prog="ludus doctor")


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "train": _train,
    "resume": _resume,
    "eval": _eval,
    "play": _play,
    "report": _report,
    "export": _export,
    "data": _data,
    "motions": _motions,
    "record": _record,
    "label": _label,
    "list": _list,
    "check": _check,
    "doctor": _doctor,
}


if __name__ == "__main__":
    main()
