"""Which part of Ludus may import which, read off the imports themselves, those inside functions included.

`ludus.envs.vec` is part of the room `envs`. A file beside the rooms is a room of its own.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[1] / "src"

# The map: what each room may import of Ludus, besides itself. A room knows only rooms that stand above it here.
# "envs.vec" is that file alone.
MAP = {
    "errors": "",
    "version": "",
    "declared": "",
    "gymnasium_ids": "",
    "files": "errors",
    "children": "errors files",
    "ranges": "errors",
    "display": "",
    "graphs": "errors",
    "rank_meeting": "",
    "ranks": "errors rank_meeting",
    "launchers": "ranks",
    "envs": "display errors files ranges ranks",
    "scaffold": "envs.mujoco.robot errors",
    "show": "display errors files",  # what is shown is handed to it: it asks neither training nor algorithms
    "policies": "envs.vec envs.row_space envs.abilities envs.importing envs.interface errors ranges ranks",
    "nn": "policies",
    "buffers": "envs.vec errors",
    "data": "envs.findings errors files ranges",
    "config": "envs errors policies ranges",
    "config_files": "config envs errors files ranges",
    "stages": "config config_files envs errors",
    "trust": "config envs errors files stages",
    # It knows jobs, and no algorithm.
    "training": "children config envs errors files graphs launchers policies ranks show stages",
    "listing": "config_files errors files show training",
    "algorithms": "buffers config config_files data declared envs errors graphs policies ranges ranks training "
    "trust",
    "setting_names": "algorithms.registry config errors",
    "settings": "algorithms.registry config config_files envs.config errors policies setting_names",
    "presets": "algorithms config data.config declared envs errors policies ranks",
    "saved_run": "algorithms.registry config config_files errors policies ranges settings training trust",
    "rewards": "algorithms data errors policies saved_run show training",
    "recording": "data envs errors saved_run",
    "onnx_files": "errors files",
    "export_tracker": "envs errors onnx_files policies saved_run",
    "export": "envs.interface envs.row_space errors export_tracker onnx_files policies saved_run "
    "training.run_facts version",
    "viewing": "envs errors policies show training",
    "provenance": "config envs errors presets ranks version",
    "measuring": "config config_files envs errors policies presets ranges saved_run show training viewing",
    "comparing": "config config_files envs.config errors files listing measuring show training.run_facts "
    "training.run_folder",
    "filming": "config envs errors measuring policies saved_run show training viewing",
    "motion_viewing": "envs errors files show",
    "body_drawing": "envs files show",
    "new_runs": "config config_files errors files training trust",
    "run_pages": "envs errors measuring policies rewards saved_run show training trust viewing",
    "run_end": "algorithms.registry config envs errors files measuring new_runs run_pages saved_run show training",
    "runs": "algorithms.registry children config envs errors files launchers measuring new_runs presets "
    "provenance ranks run_end saved_run settings show stages training trust",
    "placing": "children errors ranks",
    "ray_processes": "children errors ranks training",
    "ray_cluster": "children errors ranks ray_processes saved_run training",
    "seed_processes": "errors files placing ranks run_end show training",
    "experiment": "config envs errors files new_runs placing provenance ranges run_end runs saved_run "
    "seed_processes show stages training",
    "sweeping": "comparing config envs errors experiment files new_runs placing presets provenance ranges "
    "run_end runs saved_run seed_processes setting_names settings show stages training trust",
    "run": "config envs errors experiment export filming policies ranges rewards run_pages runs saved_run "
    "show training",
    "commands": "algorithms.registry algorithms.summaries body_drawing comparing config config_files data "
    "declared envs errors experiment export files filming launchers listing measuring motion_viewing presets "
    "ranges ranks ray_cluster recording rewards run_end run_pages runs saved_run scaffold setting_names settings "
    "show stages sweeping "
    "training.run_facts training.run_folder training.standing trust",
    "cli": "children commands errors version",  # of the verbs their names: it imports the file of the one in use
    "__main__": "cli",
    "__init__": "algorithms.registry comparing gymnasium_ids listing nn run runs saved_run sweeping training "
    "version",
}

# Arrows that close a circle for types alone: nothing is imported when the program runs.
TYPES_ONLY = {
    ("ludus.training.callbacks", "ludus.training.loop"),  # a callback is handed the trainer that calls it
    ("ludus.envs.mujoco.terms", "ludus.envs.mujoco.task"),  # and a term the task that it is of
    ("ludus.envs.mujoco.randomization", "ludus.envs.mujoco.task"),
}


class Arrow(NamedTuple):
    """One import."""

    start: str  # of a module
    end: str
    place: str  # file:line


@cache
def modules() -> dict[str, Path]:
    """Every module of Ludus; a package by its own name."""
    files = sorted((SOURCE / "ludus").rglob("*.py"))
    dotted = {".".join(file.relative_to(SOURCE).with_suffix("").parts): file for file in files}
    return {name.removesuffix(".__init__"): file for name, file in dotted.items()}


@cache
def arrows() -> list[Arrow]:
    return [arrow for name, file in modules().items() for arrow in _arrows_of(name, file)]


def _arrows_of(name: str, file: Path) -> Iterator[Arrow]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            place = f"{file.relative_to(SOURCE.parent)}:{node.lineno}"
            yield from (Arrow(name, end, place) for end in sorted(_imported(node)) if end != name)


def _imported(node: ast.Import | ast.ImportFrom) -> set[str]:
    """Modules of Ludus; `from ludus.envs import vec` imports a module, `… import VecEnv` a name of one."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names} & modules().keys()
    assert node.level == 0, "imports are written out from the root"
    wholes = {f"{node.module}.{alias.name}" for alias in node.names}
    names_alone = not wholes <= modules().keys()
    return (wholes | ({str(node.module)} if names_alone else set())) & modules().keys()


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def _allowed(arrow: Arrow) -> bool:
    room, target = room_of(arrow.start), room_of(arrow.end)
    inside = arrow.end.removeprefix("ludus.")
    return room == target or any(f"{inside}.".startswith(f"{known}.") for known in MAP.get(room, "").split())


def test_every_room_is_on_the_map() -> None:
    assert {room_of(module) for module in modules()} == MAP.keys()


def test_the_map_goes_one_way() -> None:
    rooms = list(MAP)
    wrong = [
        f"{room} may import {known}, which stands below it on the map"
        for i, room in enumerate(rooms)
        for known in MAP[room].split()
        if known.partition(".")[0] not in rooms[:i]
    ]
    assert wrong == []


def test_imports_follow_the_map() -> None:
    wrong = [
        f"{arrow.place}: {arrow.start} imports {arrow.end}, but the room {room_of(arrow.start)!r} may import only "
        f"{MAP.get(room_of(arrow.start), '') or 'nothing'}"
        for arrow in arrows()
        if not _allowed(arrow)
    ]
    assert wrong == []


def test_the_map_allows_nothing_that_is_not_used() -> None:
    """Else it would go on allowing what has been put in order."""
    unused = [
        f"{room} imports nothing of {known}"
        for room, allowed in MAP.items()
        for known in allowed.split()
        if not any(room_of(a.start) == room and f"{a.end}.".startswith(f"ludus.{known}.") for a in arrows())
    ]
    assert unused == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph: dict[str, list[Arrow]] = {}
    for arrow in arrows():
        if (arrow.start, arrow.end) not in TYPES_ONLY:
            graph.setdefault(arrow.start, []).append(arrow)
    assert _circle(graph) == [], "these imports form a circle"


def _circle(graph: dict[str, list[Arrow]]) -> list[str]:
    """The imports of one circle, or nothing."""
    done: set[str] = set()
    path: list[Arrow] = []

    def walk(module: str) -> list[str]:
        on_the_way = [arrow.start for arrow in path]
        if module in on_the_way:
            return [f"{a.place}: {a.start} imports {a.end}" for a in path[on_the_way.index(module) :]]
        if module in done:
            return []
        for arrow in graph.get(module, ()):
            path.append(arrow)
            found = walk(arrow.end)
            if found:
                return found
            path.pop()
        done.add(module)
        return []

    return next((found for module in graph if (found := walk(module))), [])


def test_a_circle_is_found_and_named() -> None:
    graph = {start: [Arrow(start, end, f"{start}.py:1")] for start, end in ("ab", "bc", "cb")}
    assert _circle(graph) == ["b.py:1: b imports c", "c.py:1: c imports b"]
