"""Does an exported policy follow its clip outside Ludus, in plain onnxruntime and plain MuJoCo?

    python benchmarks/deployment.py                      trains humanoid-mimic first: minutes on two cores
    python benchmarks/deployment.py --run RUN            with a run that there is

The bar: 20 of 20 starts, spread over the walk's cycle, followed for 10 s, and actions equal to torch to 1e-5.
Other flags (`-- --total-steps 500000`) are passed on to `ludus train`.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from ludus.export import export_onnx

EXAMPLE = Path(__file__).parents[1] / "examples" / "track_with_onnx.py"
MOST_APART = 1e-5


def train(folder: Path, flags: list[str]) -> Path:
    command = [sys.executable, "-m", "ludus.cli", "train", "humanoid-mimic", "--run-dir", str(folder), *flags]
    subprocess.run([*command, "--log.no-report"], check=True)
    return folder


def follow(file: Path, starts: int, seconds: float) -> tuple[int, str]:
    """How many starts were followed to their end, and the example's last line."""
    command = [sys.executable, str(EXAMPLE), str(file), "--starts", str(starts), "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    last = done.stdout.splitlines()[-1]
    found = re.search(r": (\d+) of \d+ starts followed", last)
    assert found is not None, done.stdout
    return int(found[1]), last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--clip", default="", help="the clip inside, where the run follows several")
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("rest", nargs="*")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = arguments.run or train(Path(folder, "run"), arguments.rest)
        apart = export_onnx(run, Path(folder, "policy.onnx"), clip=arguments.clip)
        kept, told = follow(Path(folder, "policy.onnx"), arguments.starts, arguments.seconds)
    good = kept == arguments.starts and apart <= MOST_APART
    print(f"{told}; actions within {apart:.1e} of torch  {'ok' if good else 'MISSED'}")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
