"""Writes the folder of a new task: model, task, test and settings. Nothing that is there is overwritten."""

import importlib.util
import keyword
import os
import shutil
import sys
from importlib.resources import as_file, files
from pathlib import Path
from string import Template
from typing import Any

from ludus.envs.mujoco.robot import Gains
from ludus.errors import ConfigError
from ludus.scaffold.facts import RobotFacts, facts_of

_TEMPLATES = files("ludus.scaffold") / "templates"
_ARM = "arm.xml"
_TOLERANCE = 0.15  # share of what a site reaches, at most half a decimetre
_LONGEST_NAME = 60
_LONGEST_LINE = 115
_ABOUT_SERVOS = (
    "# A motor gets a servo: its force is stiffness · (target − position) − damping · velocity, within its limits."
)


def write_task(name: str, mjcf: Path | None = None, site: str = "") -> tuple[Path, RobotFacts]:
    """A folder `name` in the present one; of the user's own model `mjcf`, or else of a small arm."""
    folder = _new_folder(name)
    if mjcf is None and site:
        raise ConfigError("--site chooses a site of your own model: give that with --mjcf FILE.xml.")
    with as_file(_TEMPLATES / _ARM) as arm:
        facts = facts_of(mjcf or arm, site)
        _write(folder, "reach" if facts.site else "pose", "test", "train", _values(name, facts, mjcf))
        if mjcf is None:
            shutil.copyfile(arm, folder / _ARM)
    return folder, facts


def write_gym_env(name: str) -> Path:
    """The same with a Gymnasium environment."""
    folder = _new_folder(name)
    _write(folder, "gym", "test_gym", "train_gym", {"name": name, "title": class_name(name)})
    return folder


def _new_folder(name: str) -> Path:
    """Where it goes; it is not made yet."""
    _refuse_name(name)
    folder = Path(name)
    if os.path.lexists(folder):
        raise ConfigError(f"{folder} is there already, and is left as it is. Choose another name, or move it.")
    return folder


def _write(folder: Path, task: str, test: str, train: str, values: dict[str, Any]) -> None:
    """Make the folder and fill it from these templates."""
    name = values["name"]
    templates = {f"{name}.py": task, f"test_{name}.py": test, "train.yaml": train}
    texts = {file: (_TEMPLATES / f"{template}.txt").read_text() for file, template in templates.items()}
    folder.mkdir()
    for file, text in texts.items():
        (folder / file).write_text(Template(text).substitute(values))


def class_name(name: str) -> str:
    """MyTask for my_task."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _refuse_name(name: str) -> None:
    if (
        not name.isidentifier()
        or not name.isascii()
        or keyword.iskeyword(name)
        or not class_name(name).isidentifier()
    ):
        raise ConfigError(
            f"{name!r} cannot be the name of a Python module: take letters, digits and _, as in my_task."
        )
    if len(name) > _LONGEST_NAME:
        raise ConfigError(f"A name of {len(name)} letters is too long; take at most {_LONGEST_NAME}.")
    if name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None:
        raise ConfigError(
            f"There is a Python module {name!r} already, which the task would hide: take another name."
        )


def _values(name: str, facts: RobotFacts, mjcf: Path | None) -> dict[str, Any]:
    """What the templates leave open."""
    sensors = bool(facts.sensors)
    steps = 240_000 if facts.site else 200_000
    return {
        "name": name,
        "title": class_name(name),
        "model_name": (mjcf or Path(_ARM)).name,
        "model_path": _path_expression(name, mjcf),
        "site": facts.site,
        "joints": _tuple_expression(facts.joints),
        "substeps": facts.substeps,
        "timestep_ms": f"{1000 * facts.timestep:g}",
        "control_ms": f"{1000 * facts.control_s:g}",
        "max_steps": facts.max_steps,
        "episode_s": f"{facts.max_steps * facts.control_s:g}",
        "robot_import": _robot_import(facts),
        "gains": _gains_expression(facts.gains),
        "compiled": "with_servos(spec, GAINS)" if facts.gains else "spec.compile()",
        "reach": f"{facts.reach:.2g}",
        "tolerance": f"{min(0.05, _TOLERANCE * facts.reach):.2g}",
        "unseen": 2 if facts.floats else 0,
        "unseen_why": "; where the base is on the floor is left out" if facts.floats else "",
        "sensor_term": '\n    "sensors": Term(lambda task, rows: task.sensors[rows]),' if sensors else "",
        "sensor_size": " + model.nsensordata" if sensors else "",
        "sensor_field": '\n        self.sensors = sim.field("sensordata")' if sensors else "",
        "total_steps": f"{steps:_}",
        "eval_every": f"{steps // 6:_}",
    }


def _path_expression(name: str, mjcf: Path | None) -> str:
    """The model beside the task, or where the user keeps it, seen from there."""
    if mjcf is None:
        return f'Path(__file__).with_name("{_ARM}")'
    return f"Path(__file__).parent / {_quoted(os.path.relpath(mjcf.resolve(), Path(name).resolve()))}"


def _tuple_expression(names: tuple[str, ...]) -> str:
    """As ruff would write it."""
    line = ", ".join(map(_quoted, names)) + ("," if len(names) == 1 else "")
    if len(line) < 80:
        return f"({line})"
    return "(\n" + "".join(f"    {_quoted(name)},\n" for name in names) + ")"


def _gains_expression(gains: dict[str, Gains]) -> str:
    """Of the servos that motors get; nothing where there are none."""
    if not gains:
        return ""
    lines = [f"    {_quoted(joint)}: Gains({k:.3g}, {d:.3g}),\n" for joint, (k, d) in gains.items()]
    return f"\n{_ABOUT_SERVOS}\nGAINS = {{\n{''.join(lines)}}}"


def _robot_import(facts: RobotFacts) -> str:
    """As ruff would write it."""
    names = [
        "Controls",
        "Gains",
        "columns_of",
        "home_control",
        "home_of",
        "ranges_of",
        "reachable_points",
        "with_servos",
    ]
    absent = [*(() if facts.gains else ("Gains", "with_servos")), *(() if facts.site else ("reachable_points",))]
    used = [name for name in names if name not in absent]
    line = f"from ludus.envs.mujoco.robot import {', '.join(used)}"
    if len(line) <= _LONGEST_LINE:
        return line
    return "from ludus.envs.mujoco.robot import (\n" + "".join(f"    {name},\n" for name in used) + ")"


def _quoted(text: str) -> str:
    """A Python string with double quotes, whatever is in it."""
    body = repr("'" + text)[2:-1]  # the quote at the front makes repr choose double ones
    return f'"{body}"' if '"' not in text else repr(text)
