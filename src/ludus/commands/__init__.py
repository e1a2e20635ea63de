"""The verbs of the command `ludus`, one file a family.

A verb is a function of the arguments that follow it. It is found in its file's `VERBS`, reads its arguments with
tyro, and prints. What it does lives elsewhere; what is slow to import is imported when the verb runs.
"""

from typing import NamedTuple


class Command(NamedTuple):
    """A verb, as the help tells it."""

    family: str  # the file of `commands/` whose VERBS has it
    takes: str
    what: str
    example: str = ""


COMMANDS = {
    "train": Command("training", "PRESET|gym:ID|…", "train a policy", "ludus train kuka-pick-place"),
    "resume": Command("training", "RUN", "go on with a run", "ludus resume runs/…/…"),
    "sweep": Command("sweep", "PRESET|FOLDER", "search for better settings"),
    "runs": Command("listing", "[FOLDER]|tag|note", "what runs there are", "ludus runs --state running"),
    "eval": Command("runs", "RUN", "measure its policy", "ludus eval RUN --episodes 200"),
    "play": Command("runs", "RUN", "watch it in the browser"),
    "report": Command("runs", "RUN", "curves and 3-D replay in one HTML page"),
    "compare": Command("compare", "RUN|FOLDER…", "groups of seeds against each other, in one HTML page"),
    "video": Command("runs", "RUN [FILE.mp4|gif]", "a film of its policy"),
    "export": Command("runs", "RUN FILE.onnx", "the policy, normaliser inside, for other programs"),
    "data": Command("data", "info FILE…", "what recorded data holds, and what is odd about it"),
    "motions": Command("motions", "import|check …", "bring and check clips of motion for a robot"),
    "body": Command("body", "check FILE", "what is wrong with a robot that imitates motion"),
    "record": Command("data", "RUN|scripted", "demonstrations of the KUKA: successes and failures"),
    "label": Command("rewards", "FILE --run RUN", "a copy of recorded data with a learned reward"),
    "list": Command("environments", "", "presets and algorithms"),
    "new": Command("new", "NAME", "a task of your own, or of your robot, that trains"),
    "check": Command("environments", "ENV", "what is wrong with an environment"),
    "doctor": Command("doctor", "", "what this machine and installation can do"),
    "completion": Command("completion", "bash|zsh|fish", "completes verbs, presets, runs and flags in a shell"),
}
