"""`ludus motions import|check|list|view`: clips of motion for the humanoid, and for any other body."""

import json as json_format
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ludus.commands.arguments import Flag, Verb, call, run_verb_of
from ludus.envs.bodies import Body, find_body
from ludus.envs.findings import Finding, format_findings
from ludus.envs.humanoid.catalogue import (
    OWN_FOLDER,
    SHIPPED,
    clip_files,
    hidden_clips,
    is_shipped,
    known_clips,
    load_any,
)
from ludus.envs.humanoid.checks import check_motion
from ludus.envs.humanoid.clip import Clip, UnknownBodyError, is_clip_of_another, motion_of, save_clip
from ludus.envs.humanoid.importing import READ, READ_OF_ROBOTS, clip_name, import_motion, read_motion
from ludus.envs.humanoid.importing.robot import is_ludus_clip
from ludus.errors import ConfigError, DataError, plain_text

_USAGE = f"""usage: ludus motions COMMAND …

Clips of motion for the humanoid, or for another robot: --body g1, --body robot.toml.

  import SOURCE…  bring motions of other sources onto a body   ludus motions import walk.bvh --loop
  check FILE…     what is wrong with clips, and what to do about it
  list [FILE…]    which clips there are
  view FILE…      watch clips in the browser

SOURCE and FILE are files, folders, or names of clips. Read are {READ}.
For another robot: {READ_OF_ROBOTS}.
'ludus motions COMMAND --help' tells more."""
_WIDEST_CELL = 200  # characters, of a clip's source or licence
_Files = tyro.conf.Positional[tuple[str, ...]]


def motions(arguments: list[str]) -> None:
    run_verb_of("motions", _VERBS, _USAGE, f"There are: {', '.join(_VERBS)}.", arguments)


# import ----------------------------------------------------------------------------------------------
def _import(arguments: list[str]) -> None:
    def command(
        sources: _Files,
        out: Path = OWN_FOLDER,
        name: str = "",
        fps: float | None = None,
        loop: Annotated[bool | None, tyro.conf.arg(metavar="| --no-loop")] = None,
        licence: str = "",
        source: str = "",
        body: str = "",
        quaternion: Literal["", "wxyz", "xyzw"] = "",
        overwrite: Annotated[bool, Flag] = False,
    ) -> None:
        """Bring motions of other sources onto a body, as clips that 'ludus train' can use.

        Joints are mapped by their meaning, feet put on the floor.

        Args:
            sources: Files, or folders of them: DeepMimic, poselib, BVH (CMU's or LAFAN1's names), CSV.
            out: Folder for the clips.
            name: Of the clip; by default the file's, without DeepMimic's humanoid3d_. For one source only.
            fps: Frames a second of the source, where the file does not say or is wrong.
            loop: Whether the clip goes on from its end to its beginning; by default as the file says.
            licence: Kept in the clip: under which terms it may be used.
            source: Kept in the clip: where it is from; by default the file's name.
            body: Whose clips they become: g1 or a file of yours; by default the humanoid.
            quaternion: Where w stands in the root's rotation, for a table that does not say; by default what keeps
                the robot on its feet.
            overwrite: Write over clips that are there already.
        """
        files = _files(sources, "import")
        if name and len(files) > 1:
            raise ConfigError(f"--name is for one source, and there are {len(files)}.")
        names = [name or clip_name(file) for file in files]
        _check_names(names)
        if not overwrite:
            _check_targets([out / f"{name}.npz" for name in names])
        onto = find_body(body) if body else None

        def read(file: Path) -> list[Clip]:
            clips = _named(file, name, fps, loop, onto, quaternion)
            return [replace(clip, licence=licence or clip.licence, source=source or clip.source) for clip in clips]

        _import_all(files, out, read)

    call(command, [_loop_flag(a) for a in arguments], "ludus motions import")


def _loop_flag(argument: str) -> str:
    """`--loop` and `--no-loop`, which a flag of three values does not offer by itself."""
    return {"--loop": "--loop=True", "--no-loop": "--loop=False"}.get(argument, argument)


def _named(
    file: Path, name: str, fps: float | None, loop: bool | None, body: Body | None, quaternion: str
) -> list[Clip]:
    clips = import_motion(file, name or None, fps, loop, body, quaternion)
    is_clip = file.suffix.lower() == ".npz" and is_ludus_clip(file)
    if is_clip and (body is None or not is_clip_of_another(file, body)):
        raise DataError(f"{file} is a clip already; 'ludus motions check' looks at it.")
    if body is not None:
        return clips
    wanted = read_motion(file, fps, quaternion).loop if loop is None else loop
    if wanted and not all(clip.loop for clip in clips):
        print(
            f"ludus: {plain_text(str(file))} cannot loop: a joint gains a whole turn in every cycle.",
            file=sys.stderr,
        )
    return clips


def _check_names(names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"Two sources are called {name}: import them one by one, with --name or another --out."
            )
        if name == "all" or any(sign in name for sign in ",:/\\"):
            raise ConfigError(
                f"{name!r} cannot be a clip's name: 'all', commas, colons and slashes have a meaning of their own "
                "where clips are named. Take another --name."
            )


def _check_targets(paths: list[Path]) -> None:
    """Before anything is read: a clip that somebody made is not lost by a second import of the same name."""
    there = next((path for path in paths if os.path.lexists(path)), None)
    if there is not None:
        raise DataError(f"{there} is already there; take another --name or --out, or write over it: --overwrite.")


def _import_all(files: list[Path], out: Path, read: Callable[[Path], list[Clip]]) -> None:
    """A file that cannot be read is told, and does not keep the others from being imported."""
    failed = 0
    for file in files:
        try:
            clips = read(file)
        except DataError as error:
            if len(files) == 1:
                raise
            failed += 1
            print(f"ludus: {error}", file=sys.stderr)
            continue
        for clip in clips:
            path = out / f"{clip.name}.npz"
            save_clip(clip, path)
            print(f"{plain_text(str(path))}: {_summary(clip)}")
            _print_troubles(check_motion(clip))
    if failed:
        raise DataError(f"{failed} of {len(files)} files could not be imported.")


def _summary(clip: Clip) -> str:
    kind = "loop" if clip.loop else "once"
    return f"{clip.duration:.2f} s, {clip.fps:g} fps, {kind}, moved by up to {clip.height_fix * 100:+.1f} cm"


def _print_troubles(findings: list[Finding]) -> None:
    for finding in findings:
        if finding.level != "ok":
            print(f"  {finding.level:8} {plain_text(finding.what)}")


# check -----------------------------------------------------------------------------------------------
def _check(arguments: list[str]) -> None:
    def command(files: _Files, body: str = "", json: Annotated[bool, Flag] = False) -> None:
        """Say what is wrong with clips, and what to do about it; exit code 1 where something is an error.

        Args:
            files: Names of clips, files (clips or sources) or folders.
            body: Whose they are, where the files do not say: g1 or a file of yours.
            json: Print it as JSON.
        """
        whose = find_body(body) if body else None
        known: dict[bytes, str] = {}
        found = {str(file): _findings_of(file, whose, known) for file in _files(files, "check")}
        if json:
            told = {file: [vars(finding) for finding in findings] for file, findings in found.items()}
            print(json_format.dumps(told, indent=1))
        else:
            print(
                "\n\n".join(f"{plain_text(file)}\n{format_findings(findings)}" for file, findings in found.items())
            )
        sys.exit(1 if any(f.level == "error" for findings in found.values() for f in findings) else 0)

    call(command, arguments, "ludus motions check")


def _findings_of(file: Path, body: Body | None, known: dict[bytes, str]) -> list[Finding]:
    """`known`: in which file each motion was found first."""
    try:
        clips = load_any(file, body)
        findings = [finding for clip in clips for finding in check_motion(clip)]
        twins = {known.setdefault(motion_of(clip), str(file)) for clip in clips} - {str(file)}
        return [*findings, *(_same_motion(twin) for twin in sorted(twins))]
    except UnknownBodyError as error:  # which says what to do
        return [Finding("error", str(error))]
    except DataError as error:
        return [Finding("error", str(error), "Import it anew, or put the source right there.")]


def _same_motion(file: str) -> Finding:
    fix = "Leave one of them away: it counts twice, and is no test of a policy that was trained on the other."
    return Finding("warning", f"It is the same motion as {file}.", fix)


# list and view -----------------------------------------------------------------------------------------
def _list(arguments: list[str]) -> None:
    def command(files: _Files = ()) -> None:
        """Show clips: how long they are, where they are from, and under which licence.

        Args:
            files: Names of clips, files or folders; by default the clips that come with Ludus and yours, in
                ./motions.
        """
        paths = _files(files, "list") if files else list(known_clips().values())
        if not paths:
            print(
                "No clips come with this installation, and ./motions has none. 'ludus motions import' makes some."
            )
            return
        rows: list[tuple[str, ...]] = [("name", "body", "seconds", "fps", "loop", "where", "source", "licence")]
        failed = 0
        for path in paths:
            try:
                rows += [_row(clip, path) for clip in load_any(path)]
            except UnknownBodyError as error:
                rows.append((path.stem, error.body, "–", "–", "–", _where(path), "–", "–"))
            except DataError as error:
                failed += 1
                print(f"ludus: {error}", file=sys.stderr)
        _print_table(rows)
        if not files:
            for name in hidden_clips():
                print(f"Your {name} goes before the shipped one, which is called {SHIPPED}{name}.")
        if failed:
            raise DataError(f"{failed} of {len(paths)} files could not be read.")

    call(command, arguments, "ludus motions list")


def _print_table(rows: list[tuple[str, ...]]) -> None:
    rows = [tuple(plain_text(cell, _WIDEST_CELL) for cell in row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def _row(clip: Clip, path: Path) -> tuple[str, ...]:
    loop = "loop" if clip.loop else "once"
    length = f"{clip.duration:.2f}", f"{clip.fps:g}", loop
    return clip.name, clip.body.name, *length, _where(path), clip.source or "–", clip.licence or "–"


def _where(path: Path) -> str:
    return "shipped" if is_shipped(path) else "yours" if path.parent == OWN_FOLDER else str(path)


def _view(arguments: list[str]) -> None:
    def command(
        files: _Files, body: str = "", port: int = 8080, seconds: float | None = None, html: Path | None = None
    ) -> None:
        """Watch clips in the browser.

        Args:
            files: Names of clips, files or folders.
            body: Whose they are, where the files do not say: g1 or a file of yours.
            port: Of the viewer; the next free one if it is taken.
            seconds: Stop after so long; by default at Ctrl-C.
            html: Write one self-contained page here instead.
        """
        from ludus.motion_viewing import view_clips

        whose = find_body(body) if body else None
        clips = [clip for file in _files(files, "view") for clip in load_any(file, whose)]
        view_clips(clips, port, seconds, html)

    call(command, arguments, "ludus motions view")


def _files(names: tuple[str, ...], verb: str) -> list[Path]:
    """The files that names, files and folders mean, each once."""
    if not names:
        raise ConfigError(f"Say which: ludus motions {verb} FILE…")
    return list(dict.fromkeys(file for name in names for file in clip_files(name)))


_VERBS: dict[str, Verb] = {
    "import": _import,
    "check": _check,
    "list": _list,
    "view": _view,
}
VERBS: dict[str, Verb] = {"motions": motions}
