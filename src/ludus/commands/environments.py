"""`ludus list` and `ludus check`: what can be trained, and whether an environment keeps the contract."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import tyro

from ludus.commands.arguments import Verb

if TYPE_CHECKING:
    from ludus.presets.preset import Preset


def list_presets(arguments: list[str]) -> None:
    from ludus.algorithms.registry import algorithm_names, built_in
    from ludus.presets import OPEN_KINDS, all_presets

    def command() -> None:
        """Show all presets and algorithms."""
        print_presets(list(all_presets().values()))
        print("\nAnd by name:")
        for _, example, what in OPEN_KINDS.values():
            print(f"  ludus train {example}\n      {what}")
        print("\nAlgorithms, for any of them (--algo NAME):")
        known = built_in()
        for name in algorithm_names():
            print(f"  {name:8} {known[name].summary if name in known else 'of an installed package'}")

    tyro.cli(command, args=arguments, prog="ludus list")


def print_presets(presets: "Sequence[Preset]") -> None:
    width = max(len(preset.name) for preset in presets)
    for preset in presets:
        print(f"  {preset.name:{width}}  {preset.summary}")


def check(arguments: list[str]) -> None:
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


VERBS: dict[str, Verb] = {"list": list_presets, "check": check}
