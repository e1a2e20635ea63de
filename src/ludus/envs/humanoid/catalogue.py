"""Finds clips by name: those that come with Ludus, those in ./motions, and files and folders anywhere."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from ludus.envs.bodies import Body, find_body
from ludus.envs.humanoid.clip import Clip
from ludus.envs.humanoid.importing import SOURCE_SUFFIXES, import_motion
from ludus.errors import ConfigError, DataError, did_you_mean, listable

OWN_FOLDER = Path("motions")  # where 'ludus motions import' writes
SHIPPED = "shipped:"  # before a name: the clip that comes with Ludus, whatever is in ./motions
SHIPPED_CLIPS_OF = "humanoid"
_FILES = (".npz", *SOURCE_SUFFIXES)
_TEXTS = (".txt", ".json")
_NOT_CLIPS = ("license", "licence", "readme", "notice", "requirements")  # text files that lie beside clips


def shipped_folder() -> Path:
    return Path(__file__).with_name("clips")


def find_clips(names: str, body: Body | None = None) -> list[Clip]:
    """The clips that `names` means: names, files and folders with commas between; 'all' is every shipped clip.

    Files of other formats are imported on the fly.
    """
    return load_all(find_files(names, body), body)


def find_files(names: str, body: Body | None = None) -> list[Path]:
    """The files of the clips that `names` means, each once. `body`: whose clips they are, by default any's."""
    if names.strip() == "all" and body is not None and body is not find_body(SHIPPED_CLIPS_OF):
        raise ConfigError(
            f"No clips of {body.name} come with Ludus: name yours, --clip walk.csv,run.npz or a folder."
        )
    if not names.strip():
        raise ConfigError(f"Say which clips: {_known_text()}, or files and folders, with commas between.")
    paths = [path for name in names.split(",") if name.strip() for path in clip_files(name.strip())]
    return list({path.resolve(): path for path in paths}.values())


def load_all(paths: Iterable[Path], body: Body | None = None) -> list[Clip]:
    """The clips of several files, all of `body` if it is said.

    Where two have the same name (walk), the second gets a number (walk-2).
    """
    clips: dict[str, Clip] = {}
    for clip in (clip for path in paths for clip in load_any(path, body)):
        name, number = clip.name, 1
        while name in clips:
            number += 1
            name = f"{clip.name}-{number}"
        clips[name] = replace(clip, name=name)
    return list(clips.values())


def whole_names(names: str) -> str:
    """The same clips, to be found from any folder: shipped ones as such, others by their whole path."""
    return ",".join(_whole_name(name.strip()) for name in names.split(",") if name.strip()) or names


def _whole_name(name: str) -> str:
    known = known_clips()
    if name == "all" or name.startswith(SHIPPED):
        return name
    if name in known and is_shipped(known[name]):
        return SHIPPED + name  # a clip of that name may lie in another folder's ./motions, or come there later
    path = known.get(name, Path(os.path.expanduser(name)))
    # Not where a link leads to, which may be called otherwise. Whoever reads what is nowhere will complain.
    return listable(path.absolute()) if os.path.exists(path) else name


def clip_files(name: str) -> list[Path]:
    """The files that one name means."""
    if name == "all":
        shipped = sorted(shipped_folder().glob("*.npz"))
        if not shipped:
            raise ConfigError("No clips come with this installation; name files or folders instead of 'all'.")
        return shipped
    if name.startswith(SHIPPED):
        return [_shipped_clip(name.removeprefix(SHIPPED))]
    known = known_clips()
    if name in known:
        return [known[name]]
    # By os.path, which takes a name that no file can have for one that is not there.
    path = Path(os.path.expanduser(name))
    if os.path.isdir(path):
        return _files_in(path)
    if os.path.exists(path):
        return [path]  # opening it tells what is wrong with it
    beside = (
        [p.name for p in path.parent.iterdir()] if path.parent != Path() and os.path.isdir(path.parent) else []
    )
    hint = did_you_mean(name, known) or did_you_mean(path.name, beside)
    advice = f"There are: {_known_text()}. 'ludus motions import FILE' brings in others."
    if path.is_absolute():  # as runs name the clips that they were trained on
        advice = (
            "If a run names it, put it back or change env.clips in the run's config.yaml; "
            "'ludus eval' and 'ludus play' take others: --clip."
        )
    raise ConfigError(f"There is no clip {name!r}, nor such a file or folder.{hint} {advice}")


def _shipped_clip(name: str) -> Path:
    path = shipped_folder() / f"{name}.npz"
    if not os.path.isfile(path):
        names = sorted(clip.stem for clip in shipped_folder().glob("*.npz"))
        hint = did_you_mean(name, names)
        raise ConfigError(f"No clip {name!r} comes with Ludus.{hint} There are: {', '.join(names) or 'none'}.")
    return path


def known_clips() -> dict[str, Path]:
    """Clips that a bare name finds; one in ./motions goes before a shipped one of the same name."""
    found = {path.stem: path for folder in (shipped_folder(), OWN_FOLDER) for path in folder.glob("*.npz")}
    return dict(sorted(found.items()))


def is_shipped(path: Path) -> bool:
    return path.parent == shipped_folder()


def hidden_clips() -> list[str]:
    """Names of shipped clips that a bare name does not find, because ./motions has one that is called the same."""
    return sorted(path.stem for path in shipped_folder().glob("*.npz") if not is_shipped(known_clips()[path.stem]))


def load_any(path: Path, body: Body | None = None) -> list[Clip]:
    """The clips in a file, of Ludus or of another program. `body`: whose they must be, by default what it says."""
    return import_motion(path, body=body)


def _files_in(folder: Path) -> list[Path]:
    files = list(_motion_files(folder))
    if not files:
        raise DataError(f"The folder {folder} holds no clips, nor do the folders in it ({', '.join(_FILES)}).")
    return sorted(files)


def _motion_files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        named_otherwise = path.suffix.lower() in _TEXTS and path.stem.lower().startswith(_NOT_CLIPS)
        if path.is_file() and path.suffix.lower() in _FILES and not named_otherwise:
            yield path


def _known_text() -> str:
    names = list(known_clips())
    return ", ".join(names) if names else "none by name (no clips are shipped, and ./motions has none)"
