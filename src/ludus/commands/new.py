"""`ludus new`: a folder with a task of the user's own."""

from pathlib import Path
from typing import Annotated

import tyro

from ludus.commands.arguments import Flag, Verb, call
from ludus.errors import ConfigError


def new(arguments: list[str]) -> None:
    def command(
        name: tyro.conf.Positional[str],
        mjcf: Path | None = None,
        site: str = "",
        gym: Annotated[bool, Flag] = False,
    ) -> None:
        """Write a folder with a task that trains as it is: model, task as terms, test, settings.

        The example is a small arm that reaches a mark. With --mjcf it is your own robot: a site of it reaches
        marks, or, where no site can, its joints take random poses. Change the task from there (docs/robot.md).

        Args:
            name: Of the task, a Python name such as my_task; the folder is made in the present one.
            mjcf: Your own model, which stays where it is.
            site: The site of your model that has to reach marks; by default the last that actuated joints move.
            gym: Write a Gymnasium environment instead.
        """
        from ludus.scaffold.writing import class_name, write_gym_env, write_task

        if gym and (mjcf is not None or site):
            raise ConfigError("--gym writes an environment without a robot: leave --mjcf and --site out.")
        if gym:
            print(f"{write_gym_env(name)}/: a point on a line stops at a mark")
            _print_commands(name, f"gym:{name}:{class_name(name)}-v0", "about 20 s")
            return
        folder, facts = write_task(name, mjcf, site)
        goal = f"the site {facts.site!r} reaches a mark" if facts.site else "the joints take a random pose"
        print(f"{folder}/: {goal}", *(f"  {line}" for line in facts.lines()), sep="\n")
        _print_commands(name, f"vec:{name}:{class_name(name)}", "" if mjcf else "about a minute")

    call(command, arguments, "ludus new")


def _print_commands(name: str, env: str, lasting: str) -> None:
    commands = {
        f"cd {name}": "",
        f"ludus check {env}": "what is wrong with it?",
        f"ludus train {env} --config train.yaml": lasting,
        "python -m pytest": "its tests",
    }
    width = max(map(len, commands))
    print("", "Next:", *(f"  {line:{width}}  {what}".rstrip() for line, what in commands.items()), sep="\n")


VERBS: dict[str, Verb] = {"new": new}
