"""What a trial is and what came out of it."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from .children import Ended


@dataclass(frozen=True)
class Trial:
    """The `number`-th trial of a kind; with the seed it determines all that is drawn."""

    kind: str
    number: int
    seed: int
    folder: Path
    """Of its own, to work in."""
    shared: Path
    """With what all trials share: references, files to learn from."""

    @property
    def random(self) -> Random:
        return Random(f"{self.seed}/{self.kind}/{self.number}")

    @property
    def command(self) -> str:
        return f'python -m tests.chaos --seed {self.seed} --only "{self.kind}" --trial {self.number}'


@dataclass
class Result:
    """What came out of it."""

    kind: str
    number: int
    command: str
    what: str = ""
    """Done to which run."""
    survived: bool = False
    equal: bool = False
    apart: str = ""
    """Why it is not to be compared: it went through an emergency checkpoint, or lost a worker's episodes."""
    executed: bool = False
    written: bool = False
    traced: bool = False
    hung: bool = False
    over_memory: bool = False
    problems: list[str] = field(default_factory=list)

    def look_at(self, ended: Ended) -> None:
        """Note what no command may ever do."""
        self.traced |= ended.traced
        self.hung |= bool(ended.hung)
        self.over_memory |= ended.over_memory
        if ended.traced or ended.hung or ended.over_memory:
            seen = {"stack trace": ended.traced, "hang": ended.hung, "memory": ended.over_memory}
            self.problems.append(f"{', '.join(name for name, is_so in seen.items() if is_so)}: {ended.line}")

    @property
    def failed(self) -> bool:
        return bool(self.problems) or not self.survived

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
