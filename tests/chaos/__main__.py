"""`make chaos`: faults in their hundreds. Exit code 1 if anything fails that must not."""

import argparse
import sys
import time

from .results import Result
from .suite import chosen, failure_lines, group_of, kinds, table, try_all


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description="Interrupt trainings in every way and compare what survives, bit by bit, with one that was "
        "left alone; let strangers' run folders, clips and data try to do harm.",
    )
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn at random")
    parser.add_argument(
        "--only", default="", help="kinds, or groups of kinds, whose name begins so; --list names them"
    )
    parser.add_argument("--trials", type=int, default=0, help="at most so many of each kind; 0: all")
    parser.add_argument("--trial", type=int, help="the one of this number, to see a failure again")
    parser.add_argument("--short", action="store_true", help="the sample that `make test` takes")
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time")
    parser.add_argument("--keep", action="store_true", help="keep the folders, to look at them")
    parser.add_argument("--list", action="store_true", help="name the kinds and how many trials each has")
    options = parser.parse_args()
    if options.list:
        for kind, (_, count, _) in kinds().items():
            print(f"{group_of(kind)}: {kind} ({count})")
        return 0
    wanted = chosen(options.only, options.trials, options.trial, options.short)
    if not wanted:
        parser.error(f"there is no kind whose name begins with {options.only!r}; --list names them")
    started = time.monotonic()
    print(f"{len(wanted)} trials, seed {options.seed}, {options.jobs} at a time", flush=True)
    results = try_all(wanted, options.seed, options.jobs, options.keep, _tell)
    print("\n", *table(results), sep="\n")
    failed = [result for result in results if result.failed]
    minutes = (time.monotonic() - started) / 60
    print(f"\n{len(results) - len(failed)} passed, {len(failed)} failed in {minutes:.1f} minutes")
    return 1 if failed else 0


def _tell(result: Result) -> None:
    if result.failed:
        print(*failure_lines(result), sep="\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
