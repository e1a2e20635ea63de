"""`ludus eval`, `play`, `report`, `video` and `export`: what a run has learned."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from ludus.commands.arguments import Flag, Verb, call
from ludus.errors import plain_text

if TYPE_CHECKING:
    from ludus.show.results import Measurement

_MOST_FAILURES = 100  # listed


def evaluate(arguments: list[str]) -> None:
    def command(
        run: tyro.conf.Positional[Path],
        episodes: int | None = None,
        stochastic: Annotated[bool, Flag] = False,
        json: Annotated[bool, Flag] = False,
        seed: int | None = None,
        clip: str = "",
        randomization: str = "",
        failures: Annotated[bool, Flag] = False,
        trust: Annotated[bool, Flag] = False,
    ) -> None:
        """Measure a run's best policy on starts that neither training nor the choice of the best has used.

        What came out is kept in the run's results.json, every episode included.

        A humanoid that follows clips plays every one of them from fixed starts, the same by which the best was
        chosen; a table tells how each went, the worst first.

        Args:
            run: Folder of the run: its best policy; RUN@final, RUN@newest or RUN@100000: that of a checkpoint. Or
                the folder of several seeds: each in turn, and their mean.
            episodes: How many; by default as many as after the training. Fixed starts are all played once.
            stochastic: Sample actions instead of taking the most likely ones.
            json: Print the result as JSON; the table is in its "rows".
            seed: Of the starts; by default the run's own evaluation stream.
            clip: Clips to follow instead of those trained on: names, files or folders, with commas between.
            randomization: Of the simulations, instead of the run's own: off, a preset that has one, or JSON.
            failures: List the episodes that failed and how they began.
            trust: Import the code that the run names, though you did not train it on this machine.
        """
        _print_all(run, episodes, stochastic, json, seed, clip, randomization, failures, trust)

    call(command, arguments, "ludus eval")


def _print_all(run: Path, episodes: int | None, stochastic: bool, as_json: bool, *options: Any) -> None:
    """One run; or every seed of an experiment in turn, and their mean. As JSON, a line for each seed."""
    from ludus.envs import display_of
    from ludus.experiment import is_experiment, seeds_of
    from ludus.saved_run import run_config
    from ludus.show.seeds import summary_lines

    if not is_experiment(run):
        _print_evaluation({}, run, episodes, stochastic, as_json, *options)
        return
    measured: dict[int, Measurement] = {}
    for number, folder in seeds_of(run).items():
        if not as_json:
            print(f"seed {number}")
        kept = _print_evaluation({"seed": number}, folder, episodes, stochastic, as_json, *options)
        measured |= {} if kept is None else {number: kept}
    if measured and not as_json:
        print("", summary_lines(measured, display_of(run_config(folder).env))[-1], sep="\n")


def _print_evaluation(
    about: Mapping[str, Any],
    run: Path,
    episodes: int | None,
    stochastic: bool,
    as_json: bool,
    seed: int | None,
    clips: str,
    randomization: str,
    failures: bool,
    trust: bool,
) -> "Measurement | None":
    """What was measured of a policy; `about` says besides which it is, in the JSON."""
    from ludus.envs import display_of
    from ludus.measuring import measure_run
    from ludus.saved_run import holds_policy, run_config, run_folder
    from ludus.show.episode_table import table_lines
    from ludus.show.result_text import failure_lines, failures_of, result_lines
    from ludus.show.results import episodes_of
    from ludus.show.text import evaluation_line

    folder = run_folder(run)
    config = run_config(folder)
    if not holds_policy(folder):
        from ludus.rewards import held_out_metrics

        metrics = held_out_metrics(run)
        told = {name.removeprefix("reward/"): value for name, value in metrics.items()}
        print(json.dumps({**about, **told}) if as_json else f"held-out episodes: {evaluation_line(metrics)}")
        return None
    measured = measure_run(run, episodes, not stochastic, seed, clips, trust, randomization or None)
    assert measured is not None  # nothing stops it
    kept, rows = measured.kept, measured.table
    played = episodes_of(measured.evaluation.record(), kept.words)
    if as_json:
        answer: dict[str, Any] = {
            **about,
            "success_rate": None,
            **kept.result,
        }  # the first is there for every environment
        answer |= {"rows": rows} if rows else {}
        answer |= {"failures": [asdict(episode) for episode in failures_of(played)]} if failures else {}
        print(json.dumps(answer))
        return kept
    display = display_of(config.env)
    print(*result_lines(kept, display), sep="\n")
    if rows and display.table:
        print("", *table_lines(display.table, rows), sep="\n")
    if failures:
        print("", *failure_lines(played, _MOST_FAILURES), sep="\n")
    return kept


def play(arguments: list[str]) -> None:
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
            run: Folder of the run: its best policy; RUN@final, RUN@newest or RUN@100000: that of a checkpoint.
            port: Of the viewer; the next free one if it is taken.
            seconds: Stop after so long; by default at Ctrl-C.
            clip: Clips to follow: names, files or folders, with commas between; by default those trained on.
            beside: Metres between a humanoid and its ghost; 0 lays one over the other.
            trust: Import the code that the run names, though you did not train it on this machine.
        """
        from ludus.run_pages import play_run

        play_run(run, port, seconds, clip, beside, trust)

    call(command, arguments, "ludus play")


def report(arguments: list[str]) -> None:
    def command(run: tyro.conf.Positional[Path], trust: Annotated[bool, Flag] = False) -> None:
        """Write report.html, one self-contained page: curves, evaluations, configuration and a 3-D replay.

        Args:
            run: Folder of the run: its best policy; RUN@final, RUN@newest or RUN@100000: that of a checkpoint.
            trust: Import the code that the run names, though you did not train it on this machine.
        """
        from ludus.run_pages import write_run_report

        print(write_run_report(run, trust))

    call(command, arguments, "ludus report")


def video(arguments: list[str]) -> None:
    def command(
        run: tyro.conf.Positional[Path],
        file: tyro.conf.Positional[Path | None] = None,
        /,
        episodes: int = 4,
        failures: Annotated[bool, Flag] = False,
        fps: float | None = None,
        size: str = "640x480",
        seed: int | None = None,
        clip: str = "",
        trust: Annotated[bool, Flag] = False,
    ) -> None:
        """Write a film of a run's policy, MP4 or GIF, for any environment that can be drawn.

        Args:
            run: Folder of the run: its best policy; RUN@final, RUN@newest or RUN@100000: that of a checkpoint.
            file: Where to, ending in .mp4 (extra ludus[video]) or .gif; by default video.mp4 in the run.
            episodes: How many, on new starts as in ludus eval; of a humanoid that follows clips: how many clips.
            failures: Only episodes that failed; where success is not told, those with the lowest returns.
            fps: Pictures a second; by default every step, at most 50. It always plays in real time.
            size: Width x height in pixels; environments that draw themselves have a size of their own.
            seed: Of the starts; by default the run's own.
            clip: Clips to follow: names, files or folders, with commas between; by default those trained on.
            trust: Import the code that the run names, though you did not train it on this machine.
        """
        from ludus.filming import film_run

        print(film_run(run, file, episodes, failures, fps, size, seed, clip, trust))

    call(command, arguments, "ludus video")


def export(arguments: list[str]) -> None:
    def command(
        run: tyro.conf.Positional[Path],
        file: tyro.conf.Positional[Path],
        clip: str = "",
        clip_as_input: Annotated[bool, Flag] = False,
        trust: Annotated[bool, Flag] = False,
    ) -> None:
        """Write a run's best policy as ONNX, the normaliser inside; checked against torch before it is written.

        Of a body that follows clips, as mjlab's and BeyondMimic's controllers read it: obs and time_step come in,
        actions and the clip at that step go out. Its model is written beside it, FILE_body.xml;
        examples/track_with_onnx.py follows the clip with these two alone.

        Args:
            run: Folder of the run: its best policy; RUN@final, RUN@newest or RUN@100000: that of a checkpoint.
            file: Where to, ending in .onnx.
            clip: The clip inside, where a run follows several: its name; or another's, or a file.
            clip_as_input: No clip inside: the next reference comes in, as joint_pos and joint_vel.
            trust: Import the code that the run names, though you did not train it on this machine.
        """
        from ludus.export import export_onnx, read_metadata

        difference = export_onnx(run, file, trust, clip, clip_as_input)
        print(f"{file}: largest difference to torch {difference:.1e}")
        print(*map(plain_text, _metadata_lines(read_metadata(file))), sep="\n")

    call(command, arguments, "ludus export")


def _metadata_lines(metadata: dict[str, Any]) -> list[str]:
    """What an exported policy takes and gives, for a user to read."""
    seen = [f"{part['input']} {part['shape']}: {_shortened(part['names'])}" for part in metadata["observations"]]
    width = max(len(action["name"]) for action in metadata["actions"])
    done = [f"{action['name']:{width}}  {_range(action)}" for action in metadata["actions"]]
    facts = [f"normaliser {metadata['normalizer']}"]
    if "control_dt" in metadata:
        facts.append(f"an action every {1000 * metadata['control_dt']:g} ms")
    if "state" in metadata:
        facts.append(f"memory of {metadata['state']['size']} numbers: {metadata['state']['input']} → new_state")
    if "action_mask" in metadata:
        facts.append(f"valid actions: {metadata['action_mask']['input']}")
    titles = [("sees", seen), ("does", _ends(done)), ("", [" · ".join(facts)])]
    if "ludus_tracker" in metadata:
        titles.append(("", _tracker_lines(metadata["ludus_tracker"])))
    return [f"  {title if i == 0 else '':5} {line}" for title, lines in titles for i, line in enumerate(lines)]


def _tracker_lines(about: dict[str, Any]) -> list[str]:
    """What else is told of a body that follows clips."""
    clip = about["clip"]
    told = "an input" if clip is None else f"{clip['name']}, {clip['steps']} steps"
    estimated = ", ".join(about["estimated"]) or "nothing"
    lines = [f"clip {told} · {about['actions']} actions · body {about['model']}", f"to be estimated: {estimated}"]
    if about["actions"] != "absolute":
        lines.append("motors pull to joint_targets; default_joint_pos + action_scale · actions is another pose")
    if about["action_joint_names"] != about["joint_names"]:
        lines.append("actions and joint_targets are in the order of action_joint_names, not of joint_names")
    return lines


def _range(action: dict[str, Any]) -> str:
    low, high = ("∞" if bound is None else f"{bound:g}" for bound in (action["low"], action["high"]))
    return f"{low} to {high} {action.get('unit', '')}".rstrip()


def _ends(lines: list[str], most: int = 12) -> list[str]:
    """All, or the first and the last of many."""
    return lines if len(lines) <= most else [*lines[: most - 2], "…", lines[-1]]


def _shortened(names: list[str], most: int = 70) -> str:
    told = ", ".join(names)
    return told if len(told) <= most else f"{told[:most].rpartition(',')[0]}, …"


VERBS: dict[str, Verb] = {"eval": evaluate, "play": play, "report": report, "video": video, "export": export}
