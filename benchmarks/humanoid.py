"""Does the humanoid learn to imitate, and how fast is it on a GPU?

    python benchmarks/humanoid.py walk --clip FILE             one clip on two cores, three seeds
    python benchmarks/humanoid.py shipped                      every clip that comes with Ludus, three seeds
    python benchmarks/humanoid.py resampling                   starts drawn to what fails, against even starts
    python benchmarks/humanoid.py amp --device cuda            AMP with and without the gradient penalty
    python benchmarks/humanoid.py speed --device cuda          trained steps a second, and the physics alone
    python benchmarks/humanoid.py clips --clip FOLDER          one policy for all clips, on a GPU
    python benchmarks/humanoid.py unseen --clip FOLDER --test-clips 'cmu_*5_*' --count 200   and clips never seen
    python benchmarks/humanoid.py g1 --clip walk.csv           the Unitree G1 on two cores, or with --device cuda

Every training is `ludus train`; other flags (`-- --total-steps 500000`) are passed on to it.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ludus.envs.humanoid.clip import Clip

PHASES = "38"  # starts of a looping clip: every 1/30 s of a walk
AMP_ON_GPU = (
    *("--env.num-envs", "2048", "--groups", "1", "--ppo.horizon", "16", "--precision", "tf32"),
    *("--total-steps", "60000000", "--eval.every", "6000000"),
)
EASY, HARD = ("bow", "punch_combo", "squat", "wave"), ("march", "stroll")  # of the shipped clips


def train(folder: Path, preset: str, *flags: str) -> tuple[list[dict[str, Any]], float]:
    """The rows of a training's metrics, and the seconds it took."""
    command = [sys.executable, "-m", "ludus.cli", "train", preset, "--run-dir", str(folder), "--log.no-report"]
    started = time.perf_counter()
    done = subprocess.run([*command, *flags], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{preset} {' '.join(flags)}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], time.perf_counter() - started


def evaluations(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if "eval/mean_reward" in row]


def verdict(good: bool) -> str:
    return "ok" if good else "MISSED"


def told(name: str, rows: list[dict[str, Any]], seconds: float) -> bool:
    """Print how a training on one clip ended; whether it met the bars of a clip."""
    last = evaluations(rows)[-1]
    rate, error = last["eval/success_rate"], last["eval/mpjpe"]
    good = rate >= 0.95 and error <= 60 and seconds <= 480
    curve = " ".join(f"{100 * row['eval/success_rate']:.0f}" for row in evaluations(rows))
    print(f"{name:19} {100 * rate:5.1f} %, MPJPE {error:4.0f} mm, {seconds:4.0f} s  {verdict(good)}   ({curve} %)")
    return good


def walk(arguments: argparse.Namespace, folder: Path) -> bool:
    """Bars: 95 % of the starts followed for 10 s and 60 mm, within 1,000,000 steps and 8 minutes, every seed."""
    return _one_clip_each({"walk": arguments.clip}, arguments, folder)


def shipped(arguments: argparse.Namespace, folder: Path) -> bool:
    """The same bars for every shipped clip."""
    from ludus.envs.humanoid.catalogue import find_clips

    names = arguments.clip.split(",") if arguments.clip else [clip.name for clip in find_clips("all")]
    return _one_clip_each({name: name for name in names}, arguments, folder)


def _one_clip_each(clips: dict[str, str], arguments: argparse.Namespace, folder: Path) -> bool:
    def one(name: str, seed: int) -> bool:
        flags = ("--clip", clips[name], "--env.eval-starts", PHASES, "--seed", str(seed), *arguments.rest)
        return told(f"{name}, seed {seed}", *train(folder / f"{name}-{seed}", "humanoid-mimic", *flags))

    with ThreadPoolExecutor(arguments.jobs) as pool:
        return all(list(pool.map(one, *zip(*itertools.product(clips, arguments.seeds), strict=True))))


def resampling(arguments: argparse.Namespace, folder: Path) -> bool:
    """Two hard clips among easy ones. Bars: their share rises, no share falls under floor / clips, and they are
    followed better than with even starts at equal samples.
    """
    outcome, names = {}, ",".join((*EASY, *HARD))
    common = ("--clip", names, "--total-steps", "800000", "--eval.every", "50000", *arguments.rest)
    for name, flag in (("resampled", "--env.resample"), ("even", "--env.no-resample")):
        run = folder / name
        train(run, "humanoid-mimic", flag, *common)
        rows = {row["clip"]: row for row in _rows(run)}
        outcome[name] = [rows[clip] for clip in HARD]
        shares = {clip: row["share"] for clip, row in rows.items()}
        print(f"{name}: shares {', '.join(f'{clip} {share:.3f}' for clip, share in shares.items())}")
        for row in outcome[name]:
            print(f"  {row['clip']}: success {row['success_rate']:.2f}, MPJPE {row['mpjpe']:.0f} mm")
        if name == "resampled":
            floor_holds = min(shares.values()) >= 0.1 / len(shares) - 1e-9
            drawn = sum(shares[clip] for clip in HARD) > len(HARD) / len(shares)
    better, worse = (sum(row["success_rate"] for row in outcome[name]) for name in ("resampled", "even"))
    bars = {"share of the hard ones risen": drawn, "none under the floor": floor_holds}
    bars |= {"hard ones followed better": better > worse}
    print("; ".join(f"{bar} {verdict(good)}" for bar, good in bars.items()))
    return all(bars.values())


def amp(arguments: argparse.Namespace, folder: Path) -> bool:
    """A walk learned from a discriminator and a speed alone: on its feet in 95 % of the episodes, within 50 mm of
    a pose of the clip and 0.2 m/s of the speed; farther from the clip without the gradient penalty.
    """
    size = AMP_ON_GPU if arguments.device.startswith("cuda") else ()

    def one(name: str, penalty: str) -> tuple[float, bool]:
        flags = ("--adversary.gradient-penalty", penalty, "--device", arguments.device, *size, *arguments.rest)
        rows, seconds = train(folder / name, "humanoid-amp", *flags)
        last = {key: value for row in rows for key, value in row.items()}  # the newest of every metric
        right = [100 * last[f"adversary/accuracy_{side}"] for side in ("demo", "policy")]
        print(
            f"{name} penalty: stays up {100 * last['eval/success_rate']:.0f} %, nearest pose "
            f"{last['eval/pose_error']:.0f} mm, speed error {last['eval/speed_error']:.2f} m/s; discriminator "
            f"right on {right[0]:.0f} % of the clip and {right[1]:.0f} % of the policy; {seconds:.0f} s"
        )
        near = last["eval/pose_error"] <= 50 and last["eval/speed_error"] <= 0.2
        return float(last["eval/pose_error"]), near and last["eval/success_rate"] >= 0.95

    with ThreadPoolExecutor(arguments.jobs) as pool:
        (penalised, walks), (free, _) = pool.map(one, ("with", "without"), ("5", "0"))
    print(f"walks {verdict(walks)}; nearer to the clip than without the penalty {verdict(penalised < free)}")
    return walks and penalised < free


def speed(arguments: argparse.Namespace, folder: Path) -> bool:
    """Bar: 500,000 trained control steps a second; beside it what the physics alone would allow."""
    envs = 16_384
    flags = ("--env.num-envs", str(envs), "--total-steps", "30000000", "--eval.every", "30000000")
    rows, _ = train(folder / "speed", "humanoid-mimic-large", "--loop.iterations", "10", *flags, *arguments.rest)
    rates = sorted(row["time/fps"] for row in rows if "time/fps" in row)
    trained, ceiling = rates[len(rates) // 2], _physics_rate(envs, arguments.device)
    good = trained >= 500_000
    share = f"{100 * trained / ceiling:.0f} % of the {ceiling:,.0f} that the physics alone makes"
    print(f"{trained:,.0f} trained steps/s ({envs:,} humanoids), {share}  {verdict(good)}")
    return good


def _physics_rate(envs: int, device: str) -> float:
    import torch

    from ludus.envs import make_vec_env
    from ludus.envs.humanoid.config import HumanoidConfig
    from ludus.envs.mujoco.task import SimTask
    from ludus.graphs import Graphed

    env = make_vec_env(HumanoidConfig(simulator="warp"), envs, device=device)
    assert isinstance(env, SimTask)
    step, seconds, blocks, steps = Graphed(env.sim.begin_step, torch.device(device)), 0.0, 11, 10
    for block in range(blocks):
        env.reset(block)  # on their feet, as in training: who lies on the floor has more contacts
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        seconds += time.perf_counter() - started if block else 0.0  # in the first the graph is recorded
    return envs * (blocks - 1) * steps / seconds


def clips(arguments: argparse.Namespace, folder: Path) -> bool:
    """Bars: 99 % success by the mean-body rule, 85 % by the strict one, 35 mm where it succeeds, 10 minutes."""
    rows, seconds = train(folder / "clips", "humanoid-mimic-large", "--clip", arguments.clip, *arguments.rest)
    last = evaluations(rows)[-1]
    rate, strict, error = (last[f"eval/{name}"] for name in ("success_rate", "success_strict", "mpjpe_succeeded"))
    good = rate >= 0.99 and strict >= 0.85 and error <= 35 and seconds <= 600
    told_rates = f"{100 * rate:.1f} %, strictly {100 * strict:.0f} %"
    print(f"{told_rates}, MPJPE of the succeeded {error:.0f} mm, {seconds:.0f} s  {verdict(good)}")
    return good


def unseen(arguments: argparse.Namespace, folder: Path) -> bool:
    """Bars: 90 % of 200 clips and 60 % of those kept out in 10 minutes; of all clips 95 % and 85 % in 30."""
    from ludus.envs.humanoid.checks import lacks_support
    from ludus.envs.humanoid.clip import load_clip, save_clip

    clips = []
    for clip in map(load_clip, sorted(Path(arguments.clip).glob("*.npz"))):
        if _means(arguments.half_speed, clip.name):
            clip = replace(clip, fps=clip.fps / 2)
        if not _means(arguments.leave_out, clip.name):
            clips.append(clip)
    own, others = some_of(clips, arguments.count, arguments.test_clips)
    lacking = {clip.name for clip in (*own, *others) if lacks_support(clip)}
    trained = [clip for clip in own if not (arguments.only_supported and clip.name in lacking)]
    for clip in (*trained, *others):
        save_clip(clip, folder / "motions" / f"{clip.name}.npz")
    flags = ("--clip", str(folder / "motions"), "--env.test-clips", arguments.test_clips, *arguments.rest)
    _, seconds = train(folder / "unseen", "humanoid-mimic-general", *flags)
    last = played(folder / "unseen")
    rate, other = last["success_rate"], last["test_success_rate"]
    least, least_other, longest = (0.9, 0.6, 600) if arguments.count else (0.95, 0.85, 1800)
    good = rate >= least and other >= least_other and seconds <= longest
    told_rates = f"{100 * rate:.1f} % of {len(trained)} clips, {100 * other:.1f} % of {len(others)} others"
    print(f"{told_rates}, {seconds:.0f} s  {verdict(good)}")
    outcome = {row["clip"]: row["success_rate"] for row in last["rows"]}
    for name, group in (("clips", own), ("others", others)):
        followed = [outcome.get(clip.name, 0.0) for clip in group]  # what was not trained on counts as lost
        borne = [outcome[clip.name] for clip in group if clip.name not in lacking]
        told_rates = f"{_percent(followed)} of all {len(group)}, {_percent(borne)} of the {len(borne)}"
        print(f"  {name}: {told_rates} that neither hang nor lean on what is not there")
    return good


def played(run: Path) -> dict[str, Any]:
    """What `ludus eval` tells of the newest policy: on a CPU, with plain MuJoCo and float32."""
    command = [sys.executable, "-m", "ludus.cli", "eval", f"{run}@newest", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ludus eval {run}@newest:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout))


def _percent(rates: list[float]) -> str:
    return f"{100 * sum(rates) / max(1, len(rates)):.1f} %"


def _rows(run: Path) -> list[dict[str, Any]]:
    """A row for every clip, of the newest evaluation."""
    return list(json.loads((run / "evaluation.json").read_text())["rows"])


def some_of(clips: "list[Clip]", count: int, kept_out: str) -> "tuple[list[Clip], list[Clip]]":
    """`count` of the clips, evenly spread (0: all), and all that are kept out; each motion once."""
    from ludus.envs.humanoid.clip import motion_of

    others = {motion_of(clip): clip for clip in clips if _means(kept_out, clip.name)}
    own = {motion_of(clip): clip for clip in clips}
    unknown = [clip for motion, clip in own.items() if motion not in others]
    count = min(count, len(unknown)) or len(unknown)
    return [unknown[i * len(unknown) // count] for i in range(count)], list(others.values())


def _means(patterns: str, name: str) -> bool:
    return any(fnmatchcase(name, pattern.strip()) for pattern in patterns.split(","))


def g1(arguments: argparse.Namespace, folder: Path) -> bool:
    """Bars: 90 % in 15 minutes on two cores, 95 % in 6 minutes on a GPU."""
    on_gpu = arguments.device.startswith("cuda")
    preset, least, longest = ("mimic-large", 0.95, 360) if on_gpu else ("mimic", 0.9, 900)
    flags = ("--body", "g1", "--clip", arguments.clip, "--device", arguments.device, *arguments.rest)
    rows, seconds = train(folder / "g1", preset, *flags)
    last = evaluations(rows)[-1]
    good = last["eval/success_rate"] >= least and seconds <= longest
    rate = f"{100 * last['eval/success_rate']:.0f} %, MPJPE {last['eval/mpjpe']:.0f} mm"
    print(f"{rate}, {seconds:.0f} s  {verdict(good)}")
    return good


CASES = {f.__name__: f for f in (walk, shipped, resampling, amp, speed, clips, unseen, g1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--clip", default="", help="what to imitate, where the case asks for it")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of walk and shipped")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time (walk, shipped, amp)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--test-clips", default="", help="of unseen: patterns of those kept out of the training")
    parser.add_argument("--leave-out", default="", help="of unseen: patterns of those that are not used at all")
    parser.add_argument(
        "--only-supported",
        action="store_true",
        help="of unseen: do not train on clips that hang or lean on what is not there",
    )
    parser.add_argument(
        "--half-speed", default="", help="of unseen: patterns of those to be played at half their speed"
    )
    parser.add_argument("--count", type=int, default=0, help="of unseen: clips to train on, evenly spread; 0: all")
    parser.add_argument("--folder", type=Path, help="keep the runs here")
    given = sys.argv[1:]
    end = given.index("--") if "--" in given else len(given)
    arguments = parser.parse_args(given[:end])
    arguments.rest = given[end + 1 :]
    if arguments.case in ("walk", "clips", "unseen", "g1") and not arguments.clip:
        parser.error(f"{arguments.case} needs --clip")
    if arguments.case == "unseen" and not arguments.test_clips:
        parser.error("unseen needs --test-clips")
    if arguments.case == "speed" and not arguments.device.startswith("cuda"):
        parser.error("speed needs --device cuda")
    with tempfile.TemporaryDirectory() as temporary:
        good = CASES[arguments.case](arguments, arguments.folder or Path(temporary))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
