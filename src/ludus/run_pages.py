"""What a run looks like: its report, and its policy live in the browser."""

import sys
from pathlib import Path

from ludus.envs import display_of
from ludus.envs.importing import told_name
from ludus.envs.showing import make_shown_env
from ludus.errors import LudusError, plain_text
from ludus.measuring import cast_of
from ludus.policies.fit import refuse_misfit
from ludus.saved_run import holds_policy, load, load_from, run_config, trusted_config
from ludus.show.episode_table import ranked_kinds
from ludus.show.playback import Page
from ludus.show.results import headline, read_measurements
from ludus.show.reward_page import RewardTrace
from ludus.training.address import Address, find_checkpoint, read_address, told_checkpoint
from ludus.training.run_facts import read_facts
from ludus.training.run_folder import RESULTS
from ludus.trust import require_trust


def write_run_report(run: str | Path, trust: bool = False) -> Path:
    """report.html of a run; without a replay where the run names code that is not trusted.

    Of a policy that is named, as in `RUN@100000`, report@100000.html.
    """
    from ludus.show.report import write_report
    from ludus.viewing import ANY_FOUR, record_replays

    address = read_address(run)
    if address.which:
        find_checkpoint(address)  # one that is not there is refused, and no page is written of it
    folder, title = address.folder, _title(address)
    config = run_config(folder)
    display = display_of(config.env)
    pages, traces, measured = list[Page](), list[RewardTrace](), None
    try:
        if not holds_policy(folder):
            from ludus.rewards import reward_traces

            traces = reward_traces(run)
        else:
            require_trust(config, folder, trust)
            policy, checkpoint = load_from(run, trust)
            measured = headline(read_measurements(folder / RESULTS), checkpoint.name)
            cast = None if measured is None else cast_of(measured)
            ranked = ranked_kinds(display.table, folder)
            pages = record_replays(config.env, policy, title, cast or ANY_FOUR, ranked)
    except LudusError as error:  # a run without a checkpoint, or a machine without a viewer, still has curves
        print(f"No replay: {error}", file=sys.stderr)
    return write_report(folder, pages, measured, rewards=traces, display=display, policy=address.which)


def _title(address: Address) -> str:
    """Of a page or viewer that shows a policy: what was trained, which run, and which policy."""
    preset = told_name(str(read_facts(address.folder).get("preset", "")))
    name = address.folder.resolve().name
    parts = [preset, name, told_checkpoint(address) if address.which else ""]
    return plain_text(" · ".join(part for part in parts if part), 200)


def play_run(
    run: str | Path,
    port: int,
    seconds: float | None,
    clips: str = "",
    beside: float = 0.0,
    trust: bool = False,
) -> None:
    """Watch a policy of a run, its best or `RUN@100000`, live in the browser.

    Of a humanoid: following `clips`, by default those it was trained on, its ghost `beside` metres away.
    """
    from ludus.viewing import play_live

    address = read_address(run)
    trained, policy = trusted_config(address.folder, trust).env, load(run, trust)
    env = make_shown_env(trained, clips, beside)
    try:
        refuse_misfit(policy, env)
        play_live(env, policy, _title(address), port, seconds)
    finally:
        env.close()
