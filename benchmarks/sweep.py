"""Does a sweep find what is to be found, lose nothing when it is killed, and save steps? And a better Walker2d.

    python benchmarks/sweep.py planted              # 24 short trials, killed with -9 three times
    python benchmarks/sweep.py walker --hours 1     # on two cores; with 16 cores, --hours 0.15

`planted`: CartPole with learning rates from 1e-6 to 1, of which only those around 3e-3 learn in 18,000 steps.
`walker`: the PPO of gym:Walker2d-v5 within 300,000 steps. One hour on two cores is 15 trainings of 1,000,000
steps, too few to search with; 300,000 leave about 60 trials, and 14 minutes for the confirmation.
"""

import argparse
import json
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ludus
from ludus.show.sweep import verdicts

GOOD_RATES = (3e-4, 3e-2)  # that learn CartPole in so few steps
MOST_STEPS = 0.8  # of those of halving that begins again
GAIN = 0.1  # of Walker2d's default
KILLS = 3
PLANTED = """gym:CartPole-v1 --trials 24 --total-steps 18k --eval.episodes 10 --confirm 0
  --param ppo.learning_rate=log(1e-6,1) --param ppo.value_coef=uniform(0.1,1)"""
# The rate, and how many gradient steps are made of how many samples, matter most; then how far advantages look
# ahead, and the network. Clip and normalisation are left as they are: their defaults are near the best everywhere.
WALKER = """gym:Walker2d-v5 --total-steps 300k --rungs 3 --eta 2 --eval.every 25k
  --param ppo.learning_rate=log(1e-4,2e-3) --param ppo.horizon=choice(16,32,64,128)
  --param ppo.minibatches=choice(8,16,32,64) --param ppo.update_epochs=choice(5,10,15,20)
  --param ppo.gamma=choice(0.98,0.99,0.995) --param ppo.gae_lambda=choice(0.9,0.95,0.98)
  --param ppo.entropy_coef=log(1e-4,1e-2) --param 'policy.hidden=choice(64 64,128 128,256 256)'
  --param policy.activation=choice(tanh,relu,elu) --param policy.initial_std=choice(0.4,0.6,1.0)"""


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "ludus", *map(str, words)]


def bar(what: str, met: bool) -> bool:
    print(f"{'ok    ' if met else 'MISSED'}  {what}", flush=True)
    return met


# Planted ------------------------------------------------------------------------------------------
def planted(folder: Path, jobs: list[str]) -> bool:
    line = command("sweep", *shlex.split(PLANTED), "--run-dir", folder, *jobs)
    lost = 0
    for _ in range(KILLS):
        lost += _killed(line, folder)
        line = command("sweep", folder, *jobs)
    done = subprocess.run(line, check=False).returncode
    sweep = ludus.Sweep(folder)
    rates = [trial.parameters["ppo.learning_rate"] for trial in sweep.trials]
    inside = [GOOD_RATES[0] <= rate <= GOOD_RATES[1] for rate in rates]
    values = [json.dumps(trial.parameters) for trial in sweep.trials]
    used, anew = steps_of(sweep)
    best = sweep.best
    print(f"in the good region: {sum(inside[:12])} of the first 12 trials, {sum(inside[12:])} of the last 12")
    return all([
        bar(f"ended by itself after {KILLS} kills: exit code {done}", done == 0),
        bar(f"{len(values)} trials, {len(set(values))} different", len(set(values)) == len(values) == 24),
        bar(f"{lost} runs or scores lost, or trained again", lost == 0),
        bar(f"best: {best.parameters}, return {best.score:.0f}", GOOD_RATES[0] <= _rate(best) <= GOOD_RATES[1]),
        bar(f"{used:,} steps of {anew:,} ({100 * used / anew:.0f} %)", used <= MOST_STEPS * anew),
    ])  # fmt: skip


def _rate(trial: Any) -> float:
    return float(trial.parameters["ppo.learning_rate"])


def _killed(line: list[str], folder: Path) -> int:
    """Run a sweep until it has some new trials, kill it, and count what was there before and is not any more."""
    before = state_of(folder)
    process = subprocess.Popen(line)
    while len([*folder.glob("trials/trial_*")]) < len(before) + 5 and process.poll() is None:
        time.sleep(0.1)
    time.sleep(random.uniform(0, 5))
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(1)
    now = state_of(folder)
    print(f"killed; {len(now)} trials", flush=True)
    return sum(now.get(name, ("",))[: len(known)] != known for name, known in before.items())


def state_of(folder: Path) -> dict[str, tuple[str, ...]]:
    """Of every trial, its values and its scores: they may become more, and never other ones."""
    if not (folder / "sweep.json").exists():
        return {}
    trials = ludus.Sweep(folder).trials
    return {trial.path.name: (json.dumps(trial.parameters), *map(str, trial.scores)) for trial in trials}


def steps_of(sweep: ludus.Sweep) -> tuple[int, int]:
    """Counted in the folders: trained, and what beginning again at every rung would have taken."""
    used = anew = 0
    for trial in sweep.trials:
        for run in sorted(trial.path.glob("seed_*")):
            if run.is_dir() and trial.scores:
                rows = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
                stops = [min((s for s in rows if s >= steps), default=max(rows)) for steps in sweep.rung_steps]
                used += max(rows)
                anew += sum(stops[: len(trial.scores)])
    return used, anew


# Walker2d -----------------------------------------------------------------------------------------
def walker(folder: Path, hours: float, jobs: list[str]) -> bool:
    first = command("sweep", *shlex.split(WALKER), "--run-dir", folder, "--hours", hours, *jobs)
    line = command("sweep", folder, "--hours", hours, *jobs) if (folder / "sweep.json").exists() else first
    print(shlex.join(["ludus", *line[3:]]), flush=True)
    if subprocess.run(line, check=False).returncode:
        return bar("the sweep came to its end", False)
    confirmed = ludus.Sweep(folder).confirmation
    found = verdicts(confirmed) if confirmed is not None else []
    if not found or found[0].share is None:
        return bar("a trial was confirmed", False)
    seeds = len(found[0].group.runs)
    return bar(f"{100 * found[0].share:+.1f} % over the default, on {seeds} fresh seeds", found[0].share >= GAIN)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=["planted", "walker"])
    parser.add_argument("--folder", type=Path, help="where the sweep goes; walker goes on with one that is there")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--jobs", type=int, default=0, help="processes at once; by default one a core")
    options = parser.parse_args()
    folder = options.folder or Path("runs") / f"sweep-{options.case}-{time.strftime('%Y%m%d-%H%M%S')}"
    jobs = ["--jobs", str(options.jobs)] if options.jobs else []
    met = planted(folder, jobs) if options.case == "planted" else walker(folder, options.hours, jobs)
    sys.exit(not met)


if __name__ == "__main__":
    main()
