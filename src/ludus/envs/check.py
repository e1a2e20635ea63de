"""Does an environment keep the contract of `VecEnv`, and will it train well? Each finding says what to do.

findings = check_env(lambda num_envs: make_gym(GymConfig("CartPole-v1"), num_envs))
print(format_findings(findings))  # of findings.py
"""

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from ludus.envs.abilities import goals_of
from ludus.envs.findings import Finding
from ludus.envs.goals import goal_parts
from ludus.envs.mujoco.check import check_physics
from ludus.envs.random_actions import made_valid, random_actions
from ludus.envs.row_space import RowSpace, choice_slices
from ludus.envs.vec import Step, VecEnv
from ludus.errors import LudusError, tell_exception

EnvFactory = Callable[[int], VecEnv]  # number of environments → a new group of them

HUGE_REWARD = 1e3
WIDE_SCALES = 1e3  # largest over smallest spread of the observation's values
LONG_EPISODE = 5_000  # steps after which an episode is thought endless
LONG_EPISODE_S = 5.0  # or the time given to the search


@dataclass(frozen=True)
class _Play:
    """What random actions led to."""

    first_obs: Tensor  # [rows, ...]
    steps: list[Step]
    present: list[Tensor]  # each [rows] bool: of the first observation and after each step
    actions: Tensor  # [steps, rows, ...]
    seconds: float


def check_env(env: VecEnv | EnvFactory, *, num_envs: int = 4, steps: int = 200, seed: int = 0) -> list[Finding]:
    """Plays random actions and looks at what comes back.

    Give a factory, `num_envs -> VecEnv`, where there is one: then "the same again" is asked of a fresh
    group, as after a restart, and the groups are closed. A group itself is reset and stays open.
    """
    findings: list[Finding] = []
    made: list[VecEnv] = []

    def fresh() -> VecEnv:
        if isinstance(env, VecEnv):
            return env
        made.append(env(num_envs))
        return made[-1]

    try:
        findings.extend(_findings(fresh, steps, seed))
    except LudusError as error:
        findings.append(Finding("error", str(error), "Repair the environment; nothing after this was looked at."))
    except Exception as error:  # noqa: BLE001 (a broken environment is what this is for)
        what = f"It raised {tell_exception(error)}"
        findings.append(Finding("error", what, "Repair the environment; nothing after this was looked at."))
    finally:
        for group in made:
            group.close()
    return findings


def _findings(fresh: Callable[[], VecEnv], steps: int, seed: int) -> Iterator[Finding]:
    """Found one after the other, so that those before a crash are kept."""
    env = fresh()
    yield from _check_action_space(env)
    generator = torch.Generator().manual_seed(seed)
    actions = random_actions(env.action_space, (steps, env.num_rows), generator)
    play = _play(env, seed, actions)
    broken = list(_check_fields(env, play))
    if broken:  # the rest would only stumble over the same
        yield from broken
        return
    yield Finding("ok", f"{steps} steps of {env.num_rows} rows: shapes and types are as the contract says.")
    yield from _check_ownership(env, seed, actions)
    yield from _check_values(env, play)
    yield from _check_masks(env, play)
    yield from _check_goals(env, play)
    yield from _check_ends(env, play)
    yield from _check_present(env, play)
    yield from _check_seeds(env, fresh(), play, seed)
    yield from _check_row_independence(env, play, seed)
    yield from _check_state(env, fresh(), actions, seed)
    yield from _check_scale(play)
    yield from _check_learning(play)
    yield from check_physics(env, seed)
    speed = steps * env.num_rows / play.seconds
    yield Finding("ok", f"Speed: {speed:,.0f} steps a second with random actions.")


# Playing --------------------------------------------------------------------------------------------
def _play(env: VecEnv, seed: int, actions: Tensor) -> _Play:
    first_obs = env.reset(seed).clone()
    steps: list[Step] = []
    present = [_present(env)]
    start = time.perf_counter()
    for action in actions:
        steps.append(_step(env, action, steps[-1].obs if steps else first_obs))
        present.append(_present(env))
    return _Play(first_obs, steps, present, actions, time.perf_counter() - start)


def _present(env: VecEnv) -> Tensor:
    return torch.ones(env.num_rows, dtype=torch.bool) if env.present is None else env.present.clone().cpu()


def _step(env: VecEnv, action: Tensor, obs: Tensor) -> Step:
    """With the action, or a valid one in its place."""
    return env.step(made_valid(action, obs, env.obs_space, env.action_space).to(env.device))


def _continue(env: VecEnv, actions: Tensor, obs: Tensor) -> list[Step]:
    """What comes after `obs`."""
    steps: list[Step] = []
    for action in actions:
        steps.append(_step(env, action, steps[-1].obs if steps else obs))
    return steps


def _same(one: Step, other: Step) -> bool:
    """Bit for bit in all that a trainer reads; final observations and metrics only where an episode ended."""
    if not torch.equal(one.done, other.done):
        return False
    done = one.done
    pairs = list(zip(one[:4], other[:4], strict=True))
    pairs.append((one.final_obs[done], other.final_obs[done]))
    pairs += [(one.metrics[n][done], other.metrics[n][done]) for n in one.metrics.keys() & other.metrics.keys()]
    return all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)


def _first_difference(ones: list[Step], others: list[Step]) -> int | None:
    return next((i for i, (a, b) in enumerate(zip(ones, others, strict=True)) if not _same(a, b)), None)


# Looking --------------------------------------------------------------------------------------------
def _check_action_space(env: VecEnv) -> Iterator[Finding]:
    space = env.action_space
    if isinstance(space, gym.spaces.Box) and not (np.isfinite(space.low) & np.isfinite(space.high)).all():
        yield Finding(
            "warning",
            "The action space has infinite bounds.",
            "Give bounds; policies scale their actions to them.",
        )


def _check_fields(env: VecEnv, play: _Play) -> Iterator[Finding]:
    obs_dtype = torch.from_numpy(np.zeros(0, env.obs_space.dtype)).dtype
    rows, obs_shape = (env.num_rows,), (env.num_rows, *env.obs_space.shape)
    if play.first_obs.shape != obs_shape or play.first_obs.dtype != obs_dtype:
        yield _wrong("What reset() returns", play.first_obs, obs_shape, obs_dtype)
    wanted: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
        "obs": (obs_shape, obs_dtype),
        "reward": (rows, torch.float32),
        "terminated": (rows, torch.bool),
        "truncated": (rows, torch.bool),
        "final_obs": (obs_shape, obs_dtype),
    }
    for name, (shape, dtype) in wanted.items():
        values = [getattr(step, name) for step in play.steps]
        bad = next((v for v in values if v.shape != shape or v.dtype != dtype), None)
        if bad is not None:
            yield _wrong(f"Step.{name}", bad, shape, dtype)
    absent = next((p for p in play.present if p.shape != rows or p.dtype != torch.bool), None)
    if absent is not None:
        yield _wrong("VecEnv.present", absent, rows, torch.bool)
    metrics = {name: value for step in play.steps for name, value in step.metrics.items()}
    for name, value in metrics.items():
        if value.shape != rows or not value.is_floating_point():
            yield _wrong(f"The metric {name!r}", value, rows, torch.float32)


def _wrong(what: str, got: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Finding:
    found = f"{what} is {got.dtype} {list(got.shape)}; the contract says {dtype} {list(shape)}."
    return Finding("error", found, "Return tensors of the space's shape and type, one row an agent.")


def _check_ownership(env: VecEnv, seed: int, actions: Tensor) -> Iterator[Finding]:
    first_obs = env.reset(seed)
    kept = [first_obs, *_step(env, actions[0], first_obs)[:5]]
    kept += [] if env.present is None else [env.present]
    copies = [tensor.clone() for tensor in kept]
    _continue(env, actions[1:5], kept[1])
    if not all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(kept, copies, strict=True)):
        fix = "Return copies of buffers that are written again; a trainer keeps what it was given."
        yield Finding("error", "Later steps change the tensors of earlier ones.", fix)


def _check_values(env: VecEnv, play: _Play) -> Iterator[Finding]:
    obs = torch.stack([play.first_obs, *(step.obs for step in play.steps)]).cpu()
    reward = torch.stack([step.reward for step in play.steps]).cpu()
    numbers = obs if not isinstance(env.obs_space, RowSpace) else env.obs_space.numbers_of(obs.flatten(0, 1))
    for name, values in (("An observation", numbers), ("A reward", reward)):
        if not values.isfinite().all():
            yield Finding("error", f"{name} is NaN or infinite.", "Find the division or the physics that does it.")
    low, high = torch.as_tensor(env.obs_space.low), torch.as_tensor(env.obs_space.high)
    outside = ((obs < low) | (obs > high)) & _like_obs(torch.stack(play.present), obs)
    if outside.any():
        value = float(obs[outside][0])
        share = float(outside.double().mean())
        what = f"{share:.2%} of the observed values are outside the space, e.g. {value:g}."
        yield Finding("warning", what, "Widen observation_space: a policy may use its bounds.")
    largest = float(reward.abs().max())
    if largest > HUGE_REWARD:
        yield Finding(
            "warning", f"Rewards reach ±{largest:g}.", "Scale them to about 1, or normalise the returns."
        )
    else:
        yield Finding("ok", f"Rewards are finite, from {float(reward.min()):g} to {float(reward.max()):g}.")


def _check_masks(env: VecEnv, play: _Play) -> Iterator[Finding]:
    """Every agent has a valid action in each of its choices."""
    if not isinstance(env.obs_space, RowSpace) or env.obs_space.mask is None:
        return
    obs = torch.stack([play.first_obs, *(step.obs for step in play.steps)]).cpu()
    mask = env.obs_space.part_of(obs.flatten(0, 1), env.obs_space.mask)[torch.stack(play.present).flatten()]
    if not ((mask == 0) | (mask == 1)).all():
        yield Finding(
            "error", "A mask of valid actions holds other numbers than 0 and 1.", "1 where one is valid."
        )
    if not all((mask[:, choice] != 0).any(1).all() for choice in choice_slices(env.action_space)):
        fix = "Mark at least one in each choice, as long as the episode has not ended."
        yield Finding("error", "A mask leaves no valid action.", fix)
    else:
        share = float((mask != 0).double().mean())
        yield Finding("ok", f"Masks rule actions out: {share:.0%} of all choices were valid.")


def _check_goals(env: VecEnv, play: _Play) -> Iterator[Finding]:
    """A goal environment judges its own goals as its steps do: with hindsight both rewards are learned from."""
    goals, parts = goals_of(env), goal_parts(env.obs_space)
    if goals is None or parts is None:
        return
    space = env.obs_space
    assert isinstance(space, RowSpace)
    after = torch.cat([torch.where(step.done[:, None], step.final_obs, step.obs) for step in play.steps])
    achieved, desired = (space.part_of(after, part) for part in parts)
    reward = torch.cat([step.reward for step in play.steps])
    differs = int((~torch.isclose(reward, goals.reward(achieved, desired), atol=1e-5)).sum())
    if differs:
        what = f"{differs} of {len(reward)} rewards are not what compute_reward() says of the goals."
        yield Finding("warning", what, "Let step() pay what compute_reward() says, or train with --replay.her 0.")
    else:
        yield Finding("ok", "compute_reward() judges goals as step() does: they can be learned with hindsight.")


def _like_obs(rows: Tensor, obs: Tensor) -> Tensor:
    """[..., rows] with as many dimensions as [..., rows, *obs]."""
    return rows.reshape(*rows.shape, *[1] * (obs.ndim - rows.ndim))


def _check_ends(env: VecEnv, play: _Play) -> Iterator[Finding]:
    if any((step.terminated & step.truncated).any() for step in play.steps):
        fix = "Where the task ended, set terminated only: the two say opposite things about the future."
        yield Finding("error", "A row is terminated and truncated at once.", fix)
    ended = [(step.obs[step.done], step.final_obs[step.done]) for step in play.steps if step.done.any()]
    if not ended:
        yield _search_for_end(env, play.actions)
        return
    if env.truncates and all(torch.equal(obs, final_obs) for obs, final_obs in ended):
        fix = "final_obs is the last observation of the old episode, obs the first of the new one."
        yield Finding("warning", "At every end, final_obs equals the new episode's first observation.", fix)
    num_ended = sum(len(obs) for obs, _ in ended)
    yield Finding("ok", f"{num_ended} episodes ended and began anew within their step.")


def _check_present(env: VecEnv, play: _Play) -> Iterator[Finding]:
    """Rows without an agent are empty, and an agent leaves only where its episode ends."""
    if env.present is None:
        return
    obs = torch.stack([play.first_obs, *(step.obs for step in play.steps)]).cpu()
    reward = torch.stack([step.reward for step in play.steps]).cpu()
    done = torch.stack([step.done for step in play.steps]).cpu()
    present = torch.stack(play.present)  # [steps + 1, rows]
    acting, next_present = present[:-1], present[1:]
    fix = "Where present is False: observe zeros, reward 0, end nothing."
    for what, broken in (
        ("observes something", (obs != 0) & ~_like_obs(present, obs)),
        ("has a reward", (reward != 0) & ~acting),
        ("ends an episode", done & ~acting),
    ):
        if broken.any():
            yield Finding("error", f"A row without an agent {what}.", fix)
    if (acting & ~next_present & ~done).any():
        fix = "Where an agent leaves, its row is terminated or truncated in that step."
        yield Finding("error", "An agent leaves though its episode has not ended.", fix)
    share = float(present.double().mean())
    yield Finding("ok", f"Agents may come and go: {share:.0%} of the rows had one.")


def _search_for_end(env: VecEnv, actions: Tensor) -> Finding:
    """No end was seen yet: look further, without keeping what comes."""
    taken, until = 0, time.monotonic() + LONG_EPISODE_S
    obs = env.reset(0)
    while taken < LONG_EPISODE and time.monotonic() < until:
        step = _step(env, actions[taken % len(actions)], obs)
        obs, taken = step.obs, taken + 1
        if step.done.any():
            return Finding("ok", f"Episodes end, the first of them after {taken} steps.")
    fix = "If the task has no end of its own, give it a time limit (max_steps)."
    return Finding("warning", f"No episode ended in {taken} steps.", fix)


def _check_seeds(env: VecEnv, other: VecEnv, play: _Play, seed: int) -> Iterator[Finding]:
    again = _play(other, seed, play.actions)
    differs = _first_difference(play.steps, again.steps)
    if not torch.equal(play.first_obs, again.first_obs) or differs is not None:
        where = "from reset() on" if differs is None else f"from step {differs + 1} on"
        fix = "Draw all randomness from the generator that reset(seed) seeds; keep nothing across reset()."
        yield Finding("error", f"The same seed and actions give another trajectory, {where}.", fix)
    else:
        yield Finding("ok", "The same seed and actions give the same trajectory, bit for bit.")
    if torch.equal(other.reset(seed + 1), play.first_obs):
        fix = "Fine for a puzzle; else vary the start, or the policy learns one path by heart."
        yield Finding("warning", "Every seed gives the same first observations.", fix)
    elif env.num_rows > 1 and (play.first_obs == play.first_obs[:1]).all():
        yield Finding("warning", "All rows start alike.", "Seed each row differently, or rows are copies.")


def _check_row_independence(env: VecEnv, play: _Play, seed: int) -> Iterator[Finding]:
    """Other actions in the first environment; the others must not notice, as long as no episode ends."""
    first = env.agents_per_env
    if env.num_rows == first:
        return
    actions = play.actions.clone()
    actions[:, :first] = actions.flip(0)[:, :first]
    other = _play(env, seed, actions)
    for one, two in zip(play.steps, other.steps, strict=True):
        if not torch.equal(one.obs[first:], two.obs[first:]) and not (one.done | two.done).any():
            yield _explain_disturbance(env, play, seed)
            return
        if (one.done | two.done).any():  # ended rows may share a random stream from here on
            break
    yield Finding("ok", "Environments do not disturb each other.")


def _explain_disturbance(env: VecEnv, play: _Play, seed: int) -> Finding:
    what = "actions of one environment change what another observes."
    if _first_difference(play.steps, _play(env, seed, play.actions).steps) is not None:  # their cause is another
        what = f"Something outlives reset(), so it is not known whether the {what}"
        return Finding("warning", what, "Set everything anew in reset().")
    fix = "Keep the state of each row apart; look for attributes of the class or the module."
    return Finding("error", f"The {what}", fix)


def _check_state(env: VecEnv, other: VecEnv, actions: Tensor, seed: int) -> Iterator[Finding]:
    half = len(actions) // 2
    newest = _play(env, seed, actions[:half]).steps[-1].obs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # what it says of the state is said below
        state = env.state()
    alien = _find_alien(state, "state")
    if alien:
        yield Finding(
            "error", f"{alien} cannot be in a checkpoint.", "Use tensors, numbers, text, lists and dicts."
        )
        return
    lost = next((env["why"] for env in state.get("envs", []) if not env["exact"]), "")
    if lost:  # the environments of Gymnasium and PettingZoo say it themselves
        fix = "Training, saving and resuming work; only the episodes under way begin anew. An environment whose "
        fix += "state can be read may define ludus_state() and load_ludus_state(state)."
        yield Finding("warning", f"Episodes restart on resume: {lost}.", fix)
        return
    expected = _continue(env, actions[half:], newest)
    other.load_state(state)
    differs = _first_difference(expected, _continue(other, actions[half:], newest))
    if differs is None:
        yield Finding("ok", "state() and load_state() continue exactly.")
        return
    fix = "Save all that the next step reads, random generators too. A Gymnasium or PettingZoo environment may "
    fix += "define ludus_state() and load_ludus_state(state)."
    yield Finding("warning", f"A resumed run differs from step {differs + 1} on.", fix)


def _find_alien(node: Any, path: str) -> str:
    """The path of the first leaf that is neither a tensor nor JSON, or nothing."""
    if node is None or isinstance(node, (Tensor, bool, int, float, str)):
        return ""
    if isinstance(node, dict):
        children = [(f"{path}[{key!r}]", value) for key, value in node.items()]
        if not all(isinstance(key, str) for key in node):
            return f"{path}, with keys that are not text,"
    elif isinstance(node, list):
        children = [(f"{path}[{i}]", value) for i, value in enumerate(node)]
    else:
        return f"{path} ({type(node).__name__})"
    return next((found for name, value in children if (found := _find_alien(value, name))), "")


def _check_scale(play: _Play) -> Iterator[Finding]:
    obs = torch.stack([step.obs for step in play.steps]).cpu()[torch.stack(play.present[1:])]  # [seen, ...]
    if not obs.is_floating_point():
        return
    spread = obs.flatten(1).double().std(0)  # [values]
    frozen = int((spread == 0).sum())
    spread = spread[spread > 0]
    if frozen and spread.numel():
        yield Finding("ok", f"{frozen} of the {frozen + spread.numel()} observed values never changed.")
    if spread.numel() == 0:
        yield Finding("warning", "The observation never changes.", "Observe something that the actions change.")
    elif float(spread.max() / spread.min()) > WIDE_SCALES or float(obs.abs().max()) > WIDE_SCALES:
        smallest, largest = float(spread.min()), float(spread.max())
        what = f"The values of an observation spread from ±{smallest:.2g} to ±{largest:.2g}."
        yield Finding("warning", what, "Keep the policy's observation normaliser on, or scale them yourself.")
    else:
        yield Finding("ok", "The values of an observation have similar scales.")


def _check_learning(play: _Play) -> Iterator[Finding]:
    """Whether there is something to learn. What random actions do not meet is told, for a policy may."""
    reward = torch.stack([step.reward for step in play.steps]).cpu()
    if not any(step.terminated.any() for step in play.steps) and bool((reward == reward[0, 0]).all()):
        what = f"The reward is {float(reward[0, 0]):g} in every step, and no episode is terminated."
        yield Finding("warning", what, "Pay for what should happen more often.")
    unpaid = _silent(play, "reward/")
    if unpaid:
        yield Finding("ok", f"Random actions were never paid for {_listed(unpaid)}: see that a policy can be.")
    ended = [step.metrics["success"][step.done].cpu() for step in play.steps if "success" in step.metrics]
    tried = torch.cat(ended) if ended else torch.zeros(0)
    if len(tried):
        yield Finding("ok", f"{int(tried.nan_to_num().sum())} of {len(tried)} episodes of random play succeeded.")


def _silent(play: _Play, prefix: str) -> list[str]:
    """Metrics of this kind that were 0 in every step."""
    names = [name for name in play.steps[0].metrics if name.startswith(prefix)]
    return [
        name.removeprefix(prefix)
        for name in names
        if all(not step.metrics[name].nan_to_num().any() for step in play.steps)
    ]


def _listed(names: list[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + more
