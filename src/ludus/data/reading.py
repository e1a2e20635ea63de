"""Recorded episodes from HDF5 files, whatever their layout: an overview, or the episodes one by one.

summary = scan(DataConfig("demos.hdf5"))                # cheap: no image is read
for episode in read_episodes(DataConfig("demos.hdf5")): # one at a time in memory
    ...
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ludus.data import d4rl, libero, minari
from ludus.data.assembling import (
    Numbers,
    ObsSpec,
    check_rows,
    is_discrete,
    obs_spec,
    read_episode,
    read_numbers,
)
from ludus.data.config import DataConfig
from ludus.data.demo import Demo, bad, reading
from ludus.data.episode import Episode
from ludus.data.files import data_files, open_file
from ludus.envs.findings import Finding
from ludus.errors import DataError, did_you_mean
from ludus.ranges import check_fields

_FORMATS = (libero, minari, d4rl)
_HOPELESS = 1_000  # broken episodes at the beginning of a file: it is not what it was taken for
_SKIP_HINT = " --data.skip-bad leaves such episodes out."

Complain = Callable[[DataError], None]  # raises, or takes note
Observe = Callable[[Demo, Numbers], None]


@dataclass(frozen=True)
class EpisodeInfo:
    """One episode, without its arrays."""

    file: Path
    name: str
    length: int  # steps
    episode_return: float
    success: bool | None
    language: str
    terminated: bool


@dataclass(frozen=True)
class FileInfo:
    path: Path
    format: str
    filters: list[str]
    bytes: int


@dataclass
class DataSummary:
    """What the files hold, as `read_episodes` would give it."""

    files: list[FileInfo]
    obs: dict[str, ObsSpec]  # after flipping and shrinking
    episodes: list[EpisodeInfo] = field(default_factory=list)
    action_size: int = 0  # numbers in an action; 0: discrete
    num_actions: int = 0  # choices of a discrete action; 0: continuous
    action_low: float = np.inf
    action_high: float = -np.inf
    has_true_reward: bool = False
    findings: list[Finding] = field(default_factory=list)

    @property
    def total_steps(self) -> int:
        return sum(episode.length for episode in self.episodes)

    @property
    def memory_bytes(self) -> int:
        """Of all episodes in memory at once: observations once, actions, rewards."""
        row = sum(spec.bytes_per_row for spec in self.obs.values())
        step = (4 * self.action_size or 8) + 4
        return (self.total_steps + len(self.episodes)) * row + self.total_steps * step


def scan(config: DataConfig, observe: Observe | None = None) -> DataSummary:
    """Reads and checks everything but images; `observe` is shown each good episode."""
    check_fields(config, "data.")
    files, problems = _describe_files(config), _Problems(config.skip_bad)
    common = _common_form(config, problems.ignore)
    summary = DataSummary([info for info, _ in files], common.obs)
    for demo in _demos(config, problems):
        try:
            numbers = common.check(demo, config)
        except DataError as error:
            problems(error)
            continue
        _add(summary, demo, numbers)
        if observe is not None:
            observe(demo, numbers)
    problems.raise_if_nothing(len(summary.episodes))
    summary.findings = [*problems.findings(), *(finding for _, found in files for finding in found)]
    return summary


def read_episodes(config: DataConfig) -> Iterator[Episode]:
    """The episodes, file by file, each file's in natural order (demo_2 before demo_10)."""
    check_fields(config, "data.")
    problems, given = _Problems(config.skip_bad), 0
    common = _common_form(config, problems.ignore)
    for demo in _demos(config, problems):
        try:
            common.check_form(demo, config)
            episode = read_episode(demo, common.keys, config)
        except DataError as error:
            problems(error)
            continue
        given += 1
        yield episode
    problems.raise_if_nothing(given)
    if problems.noted:
        warnings.warn(f"{problems.count}; the first: {problems.noted[0]}", RuntimeWarning, stacklevel=2)


# Bad data -----------------------------------------------------------------------------------------
class _Problems:
    """Refuses bad data, or takes note of it."""

    def __init__(self, skip: bool) -> None:
        self.skip, self.noted = skip, list[DataError]()

    def __call__(self, error: DataError) -> None:
        if not self.skip:
            raise DataError(f"{error}{_SKIP_HINT}") from error
        self.noted.append(error)

    def ignore(self, error: DataError) -> None:
        """In a first look: what is skipped is noted in the second."""
        if not self.skip:
            self(error)

    @property
    def count(self) -> str:
        one = len(self.noted) == 1
        return f"{len(self.noted)} broken episode{'' if one else 's'} or file{'' if one else 's'} left out"

    def findings(self) -> list[Finding]:
        return [Finding("error", str(error)) for error in self.noted]

    def raise_if_nothing(self, good: int) -> None:
        if good == 0:
            first = f" {self.count}; the first: {self.noted[0]}" if self.noted else ""
            raise DataError(f"The data holds no episode that can be used.{first}")


# Files and episodes -------------------------------------------------------------------------------
def _format_of(file: Any, path: Path) -> Any:
    for module in _FORMATS:
        if module.recognises(file):
            return module
    raise DataError(
        f"{path} is in no layout that is read here; it has {', '.join(sorted(file)[:8]) or 'nothing'}. Known are "
        "data/demo_k (LIBERO, robomimic), episode_k (Minari) and observations, actions, … (D4RL)."
    )


def _describe_files(config: DataConfig) -> list[tuple[FileInfo, list[Finding]]]:
    """Those that can be opened; the others are a problem later."""
    described = []
    for path in data_files(config.path):
        try:
            with open_file(path) as file, reading(str(path)):
                module = _format_of(file, path)
                info = FileInfo(path, module.format_name(file), module.filters(file), path.stat().st_size)
                described.append((info, list(module.findings(file, path))))
        except DataError:
            continue
    return described


def _demos(config: DataConfig, complain: Complain) -> Iterator[Demo]:
    """All episodes that can be opened; each is good while its file is open, until the next is asked for."""
    for path in data_files(config.path):
        with ExitStack() as stack:
            try:
                file = stack.enter_context(open_file(path))
                with reading(str(path)):
                    listed = _format_of(file, path).episodes(file, path, config)
                if not listed:
                    raise DataError(f"{path} holds no episodes.")
            except DataError as error:
                complain(error)
                continue
            yield from _opened(path, listed, complain)


def _opened(path: Path, listed: list[tuple[str, Callable[[], Demo]]], complain: Complain) -> Iterator[Demo]:
    opened = 0
    for i, (name, opener) in enumerate(listed):
        try:
            with reading(f"{path}: {name}"):
                demo = opener()
        except DataError as error:
            complain(error)
            if opened == 0 and i + 1 == _HOPELESS:
                complain(DataError(f"{path}: its first {_HOPELESS:,} episodes are all broken. No more are tried."))
                return
        else:
            opened += 1
            yield demo


# What the episodes have in common -----------------------------------------------------------------
@dataclass(frozen=True)
class _Form:
    """Observations and actions as most episodes have them; an episode that differs is broken."""

    obs: dict[str, ObsSpec]
    action: tuple[tuple[int, ...], bool]  # shape of one, discrete
    example: str  # an episode of this form; "": there is none

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.obs)

    def check_form(self, demo: Demo, config: DataConfig) -> None:
        if not self.example:
            _form_of(demo, config)  # says why
        check_rows(demo, self.keys)
        fix = f"Most are as {self.example}. Leave the odd ones out, or read them apart."
        for key, spec in self.obs.items():
            own = obs_spec(demo, key, config)
            if own != spec:
                what = f"is {own.shape} {own.dtype}, in other episodes {spec.shape} {spec.dtype}"
                raise bad(demo.where, key, what, fix)
        if _action_form(demo) != self.action:
            what = f"has the shape {demo.action.shape} of {demo.action.dtype}, in other episodes {self.action[0]}"
            raise bad(demo.where, "actions", what, fix)

    def check(self, demo: Demo, config: DataConfig) -> Numbers:
        self.check_form(demo, config)
        return read_numbers(demo, self.keys, config)


def _action_form(demo: Demo) -> tuple[tuple[int, ...], bool]:
    discrete = is_discrete(demo.action)
    return () if discrete else demo.action.shape or (1,), discrete


def _common_form(config: DataConfig, complain: Complain) -> _Form:
    """The form most episodes have, from a first look that reads no data."""
    forms, known = Counter[tuple[Any, ...]](), set[str]()
    examples: dict[tuple[Any, ...], _Form] = {}
    for demo in _demos(config, complain):
        known |= set(demo.obs)
        try:
            form = _form_of(demo, config)
        except DataError as error:
            if all(key in demo.obs for key in config.keys):
                complain(error)
            continue
        signature = (tuple((key, spec.shape, spec.dtype.str) for key, spec in form.obs.items()), form.action)
        forms[signature] += 1
        examples.setdefault(signature, form)
    for key in config.keys:
        if known and key not in known:
            has = f"They have {', '.join(sorted(known))}."
            raise DataError(f"No episode has an observation {key!r}.{did_you_mean(key, known)} {has}")
    if not forms:
        return _Form({}, ((), False), "")  # no episode has one
    return examples[forms.most_common(1)[0][0]]


def _form_of(demo: Demo, config: DataConfig) -> _Form:
    keys = config.keys or tuple(demo.obs)
    return _Form({key: obs_spec(demo, key, config) for key in keys}, _action_form(demo), demo.where)


def _add(summary: DataSummary, demo: Demo, numbers: Numbers) -> None:
    action = numbers.action
    summary.episodes.append(
        EpisodeInfo(
            demo.path,
            demo.name,
            len(action),
            numbers.file_return,
            numbers.success,
            demo.language,
            demo.terminated,
        )
    )
    summary.action_low = min(summary.action_low, float(action.min()))
    summary.action_high = max(summary.action_high, float(action.max()))
    summary.has_true_reward |= numbers.true_reward is not None
    if is_discrete(demo.action):
        summary.num_actions = max(summary.num_actions, demo.num_actions, int(action.max()) + 1)
    else:
        summary.action_size = action.shape[1]
