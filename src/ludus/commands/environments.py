"""`ludus list` and `ludus check`: what can be trained, and whether an environment keeps the contract."""

import shutil
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import replace

import tyro

from ludus.algorithms.summaries import algorithm_summaries
from ludus.commands.arguments import Verb, call
from ludus.presets import OPEN_KINDS, find_preset, preset_summaries

_NARROWEST, _WIDEST = 80, 120


def list_presets(arguments: list[str]) -> None:
    def command() -> None:
        """Show all presets and algorithms."""
        print(presets_text())
        print("\nAnd by name:")
        for _, example, what in OPEN_KINDS.values():
            print(f"  ludus train {example}\n      {what}")
        print("\nAlgorithms, for any of them (--algo NAME):")
        print(columns_text(algorithm_summaries()))

    call(command, arguments, "ludus list")


def presets_text() -> str:
    return columns_text(preset_summaries())


def columns_text(lines: Mapping[str, str]) -> str:
    """Names, and what they are, within the width of the terminal."""
    indent = 4 + max(map(len, lines))
    width = max(_NARROWEST, min(shutil.get_terminal_size((_WIDEST, 24)).columns, _WIDEST))
    folded = [
        textwrap.fill(f"  {name:{indent - 4}}  {what}", width, subsequent_indent=" " * indent)
        for name, what in lines.items()
    ]
    return "\n".join(folded)


def check(arguments: list[str]) -> None:
    def command(env: tyro.conf.Positional[str], steps: int = 200) -> None:
        """Say what is wrong with an environment, and what to do about it.

        Args:
            env: A preset, gym:ID or another name that 'ludus list' shows.
            steps: How long to play with it.
        """
        from ludus.envs import make_vec_env
        from ludus.envs.check import check_env
        from ludus.envs.findings import format_findings

        config = find_preset(env).config.env
        findings = check_env(lambda n: make_vec_env(replace(config, num_envs=n), n), steps=steps)
        print(format_findings(findings))
        sys.exit(1 if any(finding.level == "error" for finding in findings) else 0)

    call(command, arguments, "ludus check")


VERBS: dict[str, Verb] = {"list": list_presets, "check": check}
