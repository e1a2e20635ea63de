"""`ludus label`: a learned reward, written into recorded data."""

from pathlib import Path
from typing import Literal

import tyro

from ludus.commands.arguments import Verb, call


def label(arguments: list[str]) -> None:
    def command(
        data: tyro.conf.Positional[Path],
        run: Path,
        out: Path | None = None,
        head: Literal["reward", "progress", "success"] = "reward",
    ) -> None:
        """Write a copy of recorded data with a run's learned reward in it, as the dataset learned_rewards.

        Train on it with --data COPY --data.reward learned_rewards.

        Args:
            data: HDF5 file in LIBERO's or robomimic's layout.
            run: Folder of a run that learned a reward: its best one; RUN@100000: that of a checkpoint.
            out: The copy; by default FILE_labelled.hdf5 beside the file.
            head: What of it to write: the reward, or how far the job has come, or how likely it succeeds.
        """
        from ludus.rewards import label as label_file
        from ludus.rewards import label_key

        target, episodes = label_file(str(data), run, out, head)
        use = f"--data {target} --data.reward {label_key(head)}"
        print(f"{target}: {episodes} episodes labelled. Train on them with {use}")

    call(command, arguments, "ludus label")


VERBS: dict[str, Verb] = {"label": label}
