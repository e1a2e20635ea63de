"""`ludus new`: a folder with a task of the user's own."""

from pathlib import Path

import tyro

from ludus.commands.arguments import Verb


def new(arguments: list[str]) -> None:
    from ludus.scaffold.writing import class_name, write_task

    def command(name: tyro.conf.Positional[str], mjcf: Path | None = None, site: str = "") -> None:
        """Write a folder with a task that trains as it is: model, task as terms, test, settings.

        The example is a small arm that reaches a mark. With --mjcf it is your own robot: a site of it reaches
        marks, or, where no site can, its joints take random poses. Change the task from there (docs/robot.md).

        Args:
            name: Of the task, a Python name such as my_task; the folder is made in the present one.
            mjcf: Your own model, which stays where it is.
            site: The site of your model that has to reach marks; by default the last that actuated joints move.
        """
        folder, facts = write_task(name, mjcf, site)
        env = f"vec:{name}:{class_name(name)}"
        goal = f"the site {facts.site!r} reaches a mark" if facts.site else "the joints take a random pose"
        print(f"{folder}/: {goal}")
        print(*(f"  {line}" for line in facts.lines()), sep="\n")
        commands = {
            f"cd {folder}": "",
            f"ludus check {env}": "what is wrong with it?",
            f"ludus train {env} --config train.yaml": "" if mjcf else "about a minute",
            "python -m pytest": "its tests",
        }
        width = max(map(len, commands))
        print("", "Next:", *(f"  {line:{width}}  {what}".rstrip() for line, what in commands.items()), sep="\n")

    tyro.cli(command, args=arguments, prog="ludus new")


VERBS: dict[str, Verb] = {"new": new}
