"""`ludus body check|list`: robots that imitate motion."""

import json as json_format
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from ludus.commands.arguments import Flag, Verb, call, run_verb_of
from ludus.errors import LudusError, plain_text

if TYPE_CHECKING:
    from ludus.envs.bodies import Body  # which loads MuJoCo

_USAGE = """usage: ludus body COMMAND …

Robots that imitate motion: an MJCF model, and a short TOML file beside it.

  check BODY  what is wrong with one, and what to do about it; draws it   ludus body check robot.toml
  list        which come with Ludus

BODY is a name that 'list' shows, a TOML file or an MJCF file. 'ludus body COMMAND --help' tells more."""


def body(arguments: list[str]) -> None:
    run_verb_of("body", _VERBS, _USAGE, f"There are: {', '.join(_VERBS)}.", arguments)


def _check(arguments: list[str]) -> None:
    def command(
        body: tyro.conf.Positional[str], picture: Path | None = None, json: Annotated[bool, Flag] = False
    ) -> None:
        """Say what is wrong with a body, and draw it in its default pose; exit code 1 where something is an error.

        Args:
            body: A name (humanoid, g1), a TOML file or an MJCF file.
            picture: Where the drawing goes, .png or .html; by default NAME-default-pose.png in this folder.
            json: Print it as JSON, and draw only where --picture says.
        """
        from ludus.envs.bodies.checks import check_body
        from ludus.envs.findings import format_findings

        found, findings = check_body(body)
        if json:
            print(json_format.dumps([vars(finding) for finding in findings], indent=1))
        else:
            print(format_findings(findings))
        if found is not None and (picture is not None or not json):
            _draw(found, picture or Path(f"{found.name}-default-pose.png"), tell=not json)
        sys.exit(1 if any(finding.level == "error" for finding in findings) else 0)

    call(command, arguments, "ludus body check")


def _draw(found: "Body", picture: Path, tell: bool) -> None:
    """Without a way to draw pictures on this machine, a page that the browser draws."""
    from ludus.body_drawing import draw_page, draw_picture

    try:
        if picture.suffix.lower() == ".html":
            draw_page(found, picture)
        else:
            draw_picture(found, picture)
    except LudusError as error:
        if picture.suffix.lower() == ".html":
            raise
        print(f"ludus: {error}", file=sys.stderr)
        picture = picture.with_suffix(".html")
        draw_page(found, picture)
    if tell:
        print(f"Its default pose: {plain_text(str(picture))}")


def _list(arguments: list[str]) -> None:
    def command() -> None:
        """Show the bodies that come with Ludus, and whether their models are there."""
        from ludus.envs.bodies.body import SHIPPED_BODIES, find_body

        for name in SHIPPED_BODIES:
            try:
                found = find_body(name)
                told = f"{len(found.joints)} joints, {1 / found.dt:.4g} control steps a second"
            except LudusError as error:
                told = str(error)
            print(f"{name:10}  {told}")

    call(command, arguments, "ludus body list")


_VERBS: dict[str, Verb] = {"check": _check, "list": _list}
VERBS: dict[str, Verb] = {"body": body}
