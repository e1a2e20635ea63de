"""`ludus compare`: groups of seeds against each other."""

import json
from pathlib import Path
from typing import Annotated

import tyro

from ludus.commands.arguments import Flag, Verb, call


def compare(arguments: list[str]) -> None:
    def command(
        runs: tyro.conf.Positional[tuple[Path, ...]],
        metric: str = "",
        threshold: float | None = None,
        measure: int = 0,
        page: Path | None = None,
        json: Annotated[bool, Flag] = False,
        trust: Annotated[bool, Flag] = False,
    ) -> None:
        """Compare groups of runs: curves, means with intervals, and the probability that one is better.

        A folder of runs is a group. Single runs are grouped by their settings without the seed. Others are held
        against the first group.

        Args:
            runs: Folders of runs that differ in their seed (ludus train --seeds makes one), or single runs.
            metric: To compare by (docs/metrics.md); by default the success rate in evaluations, else the return.
            threshold: For the steps until it is reached; by default 0.9 of success, or of the way to the best end.
            measure: Play every run's best policy on so many new starts, the same for all, before comparing.
            page: Where the page goes; by default comparison.html here.
            json: Print the numbers as JSON, and write a page only where --page says so.
            trust: With --measure: import the code that the runs name, though you did not train them here.
        """
        _print_comparison(runs, metric, threshold, measure, page, json, trust)

    call(command, arguments, "ludus compare")


def _print_comparison(
    runs: tuple[Path, ...],
    metric: str,
    threshold: float | None,
    measure: int,
    page: Path | None,
    as_json: bool,
    trust: bool,
) -> None:
    from ludus.comparing.face import compare as compare_runs

    comparison = compare_runs(runs, metric, threshold, measure, trust)
    if as_json:
        print(json.dumps(comparison.as_dict()))
        if page is not None:
            comparison.write_page(page)
        return
    print(comparison)
    print(f"\nThe page: {comparison.write_page(page or Path('comparison.html'))}")


VERBS: dict[str, Verb] = {"compare": compare}
