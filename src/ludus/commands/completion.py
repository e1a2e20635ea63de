"""`ludus completion bash|zsh|fish`: a script for the shell, and the words that it asks for.

The shell hands over the line up to the cursor. What it gets back must come at once, so nothing slow is imported.
The settings of a preset take as long as its help: they are found out once, and kept.
"""

import functools
import hashlib
import os
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from ludus.algorithms.summaries import algorithm_summaries
from ludus.commands import COMMANDS
from ludus.declared import declared_options, declared_verbs
from ludus.errors import ConfigError, LudusError
from ludus.files import write_whole
from ludus.presets import OPEN_KINDS, preset_summaries

_BASH = r"""_ludus() {
  local line="${COMP_LINE:0:COMP_POINT}"
  local word="${line##*[[:space:]]}" found
  mapfile -t found < <(ludus completion --line "$line" 2>/dev/null)
  local start="${word%"${word##*[:=@]}"}"  # bash takes what follows one of these for a word of its own
  COMPREPLY=("${found[@]#"$start"}")
  [[ ${#found[@]} -eq 1 && ${found[0]} == *[/:@] ]] && compopt -o nospace
}
complete -o default -F _ludus ludus"""
_ZSH = r"""#compdef ludus
_ludus() {
  local -a found open
  found=("${(@f)$(ludus completion --line "${(j: :)words[1,CURRENT]}" 2>/dev/null)}")
  found=(${found:#})
  open=(${(M)found:#*[/:@]})
  found=(${found:#*[/:@]})
  (( ${#open} )) && compadd -S '' -- $open
  (( ${#found} )) && compadd -- $found
  (( ${#open} + ${#found} )) || _files
}
compdef _ludus ludus"""
_FISH = r"""complete -c ludus -a '(ludus completion --line (commandline -cp | string collect) 2>/dev/null)'"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
_USAGE = """usage: ludus completion bash|zsh|fish

Prints a script that completes verbs, presets, runs and flags. Once:

  bash  ludus completion bash > ~/.local/share/bash-completion/completions/ludus
  zsh   ludus completion zsh > ~/.zfunc/_ludus      (with fpath+=~/.zfunc before compinit)
  fish  ludus completion fish > ~/.config/fish/completions/ludus.fish"""
_ALWAYS = ("--quiet", "--debug", "--help")
_OF_TRAIN = ("--algo", "--config", "--run-dir", "--name", "--tags", "--note", "--seeds", "--at-once", "--stop-at",
             "--ray", "--trust", "--from", "--help-all", *_ALWAYS)  # fmt: skip
_OF_SWEEP = ("--param", "--trials", "--rungs", "--eta", "--metric", "--direction", "--sampler", "--sampler-seed",
             "--confirm", "--confirm-seeds", "--hours", "--jobs", "--launcher", "--ray")  # fmt: skip
_SWEEP_WORDS = {"--sampler": ("tpe", "random"), "--direction": ("max", "min")}
_CHECKPOINTS = ("best", "final", "newest")
_MOST_RUNS = 200


def completion(arguments: list[str]) -> None:
    if len(arguments) == 2 and arguments[0] == "--line":
        print("\n".join(words_for(arguments[1])))
    elif len(arguments) == 1 and arguments[0] in SCRIPTS:
        print(SCRIPTS[arguments[0]])
    elif not arguments or arguments[0] in ("-h", "--help"):
        print(_USAGE)
        sys.exit(0 if arguments else 2)
    else:
        raise ConfigError(f"'ludus completion' knows {', '.join(SCRIPTS)}.")


def words_for(line: str) -> list[str]:
    """What the last word of the line, which may be empty, may become."""
    try:
        words = shlex.split(line)
    except ValueError:  # a quote is open
        words = line.split()
    started = words.pop() if words and not line[-1:].isspace() else ""
    before = words[1:]
    if not before:
        return _beginning(started, COMMANDS)
    try:
        return _beginning(started, _choices(before[0], before[1:], started))
    except (LudusError, OSError):  # a shell shows nothing of it
        return []


def _beginning(started: str, choices: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(choice for choice in choices if choice.startswith(started)))


def _choices(verb: str, before: list[str], started: str) -> Iterable[str]:
    """What may come next after a verb and the words that follow it."""
    command = COMMANDS.get(verb)
    if command is None:
        return ()
    last = before[-1] if before else ""
    if verb == "train":
        return _train_choices(before, last, started)
    if verb == "sweep":
        return _sweep_choices(before, last, started)
    if last in ("--run", "--from") or (verb == "runs" and before in (["tag"], ["note"])):
        return _runs(started)
    if verb == "runs" and last in ("--state", "--sort"):
        from ludus.listing import SORTS, STATES

        return STATES if last == "--state" else SORTS
    file = Path(__file__).with_name(f"{command.family}.py")
    inner = declared_verbs(file, "_VERBS")  # of `ludus motions import`
    if started.startswith("-"):
        return [*declared_options(file, before[0] if before and before[0] in inner else verb), *_ALWAYS]
    if before and command.takes.startswith("RUN") and command.takes.endswith("…"):
        return () if last.startswith("--") else _runs(started)
    return () if before else [*inner, *_first_words(command.takes, started)]


def _first_words(takes: str, started: str) -> list[str]:
    """What a verb takes first: words that its help writes in small letters, runs, environments."""
    listed = takes.split()[0].split("|") if takes else []
    if "ENV" in listed:
        return _environments(started)
    folders = _folders(started) if "[FOLDER]" in listed else {}
    return [*filter(str.islower, listed), *folders, *(_runs(started) if "RUN" in listed else ())]


# Training -----------------------------------------------------------------------------------------------
def _train_choices(before: list[str], last: str, started: str) -> Iterable[str]:
    preset = next((word for word in before if word in preset_summaries() or ":" in word), "")
    algo = before[before.index("--algo") + 1] if "--algo" in before[:-1] else ""
    if last == "--algo":
        return algorithm_summaries()
    if last in ("--from", "--distill.teacher"):
        return _runs(started)
    if started.startswith("-"):
        return [*_settings(preset, algo), *_OF_TRAIN]
    if chosen := _settings(preset, algo).get(last) if last.startswith("--") else None:
        return chosen
    return () if preset or last.startswith("--") else _environments(started)


def _sweep_choices(before: list[str], last: str, started: str) -> Iterable[str]:
    """As of `train`; a setting that is searched goes on with =."""
    if last == "--param":
        preset = next((word for word in before if word in preset_summaries() or ":" in word), "")
        names = [flag.removeprefix("--").replace("-", "_") for flag in _settings(preset, "")]
        return [f"{name}=" for name in names if "." in name and ".no_" not in name]
    if last in _SWEEP_WORDS:
        return _SWEEP_WORDS[last]
    words = _train_choices(before, last, started)
    if started.startswith("-"):
        return [*words, *_OF_SWEEP]
    return [*words, *_folders(started)] if not before else words


def _environments(started: str) -> list[str]:
    """Presets, and prefixes of environments by any name; after `gym:`, the ids that Gymnasium knows."""
    if not started.startswith("gym:"):
        return [*preset_summaries(), *(f"{kind}:" for kind in OPEN_KINDS)]
    import gymnasium

    return [f"gym:{env_id}" for env_id in gymnasium.registry]


def _settings(preset: str, algo: str) -> dict[str, list[str]]:
    """Flags of a preset's settings, each with the values that it takes, where they are few."""
    known = preset if preset in preset_summaries() or preset.count(":") == 1 else ""
    if not known or (not known.startswith("gym:") and ":" in known):
        known = "gym:CartPole-v1"  # the settings of any environment; nothing of the user's is imported for a TAB
    algo = algo if algo in algorithm_summaries() else ""
    kept = _cache_folder() / hashlib.sha256(f"{known} {algo}".encode()).hexdigest()[:16]
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        lines = [" ".join([flag, *values]) for flag, values in _find_settings(known, algo).items()]
        write_whole(kept, "\n".join(lines))
    return {flag: values for flag, *values in map(str.split, kept.read_text().splitlines())}


def _cache_folder() -> Path:
    """Of this version of Ludus, in this place: another has other settings."""
    source = Path(__file__).parents[1]
    newest = max(file.stat().st_mtime_ns for file in source.rglob("*.py"))
    mark = hashlib.sha256(f"{source} {newest}".encode()).hexdigest()[:12]
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "ludus" / f"completion-{mark}"


def _find_settings(preset: str, algo: str) -> dict[str, list[str]]:
    from ludus.commands.train_help import choices_of
    from ludus.presets import find_preset
    from ludus.setting_names import flag_of, settings_of

    config = find_preset(preset, algo).config
    found: dict[str, list[str]] = {"--total-steps": [], "--device": ["cpu", "cuda"]}
    for name in settings_of(config):
        section, dot, last = name.rpartition(".")
        part = functools.reduce(getattr, section.split(".") if section else [], config)
        found.setdefault(flag_of(name), list(choices_of(part, last)))
        if isinstance(getattr(part, last), bool):
            found[flag_of(f"{section}{dot}no-{last}")] = []
    return found


# Runs ---------------------------------------------------------------------------------------------------
def _runs(started: str) -> list[str]:
    """Folders on the way to a run, and runs; after an @, their checkpoints."""
    run, at, _ = started.partition("@")
    if at:
        numbers = [folder.name.removeprefix("step_") for folder in Path(run, "checkpoints").glob("step_*")]
        steps = sorted(int(number) for number in numbers if number.isdecimal())
        return [f"{run}@{which}" for which in (*_CHECKPOINTS, *steps)]
    if not started and (known := [str(file.parent) for file in Path("runs").glob("**/config.yaml")]):
        return sorted(known)[:_MOST_RUNS]
    return sorted(name if is_run else f"{name}/" for name, is_run in _folders(started).items())


def _folders(started: str) -> dict[str, bool]:
    """Those beside what is typed, and whether they are runs."""
    parent = Path(started if started.endswith("/") else os.path.dirname(started))
    folders = [folder for folder in parent.iterdir() if folder.is_dir() and not folder.name.startswith(".")]
    start = os.path.dirname(started)
    return {os.path.join(start, folder.name): (folder / "config.yaml").exists() for folder in folders}


VERBS: dict[str, Callable[[list[str]], None]] = {"completion": completion}
