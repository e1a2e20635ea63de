"""The loop over a block of environments, the same in-process and in a worker process.

Gymnasium's vector environments are not used: by default they give a filler row after every episode.
Here an ended episode restarts inside the same step, and all results go to arrays allocated once.
"""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ludus.envs.gym.infos import NUMBERS, SUCCESS_KEYS, InfoMeans
from ludus.envs.gym.rows import Rows
from ludus.envs.gym.spaces import Spaces
from ludus.envs.gym.state import largest_part, lost_state, restore, snapshot
from ludus.envs.row_space import MASK, ChoiceRow, RowSpace, choice_slices
from ludus.envs.vec import State, derive_seed
from ludus.errors import CheckpointError, EnvError, tell_exception

NO_LIMIT = 2**62  # steps
NUM_SEEDS = 2**31  # some environments hand their seed to C code, which takes no more
_LOST = "its episode was lost before"
_FLAGS = frozenset({bool, np.bool_})
LARGE_STATE = 100_000_000  # bytes of all environments of a group: worth a word
_SMALL_STATE = 1_000_000  # bytes: a smaller state may grow without a warning
_GROWTH = 10  # times what was saved first


class EnvRaisedError(EnvError):
    """The environment's own code raised. A worker it happens in is restarted."""


class LostEpisodeError(Exception):
    """Raised in place of a step by an episode that could not be continued."""


class Recipe(Protocol):
    """All that a process needs to make environments; plain data, so that it can be sent to one."""

    @property
    def name(self) -> str: ...  # for messages: "gym:CartPole-v1"

    def make_block(self, count: int, first_env: int = 0) -> "EnvBlock":
        """`count` environments, in rows of their own memory. Wrong settings are refused here."""
        ...


class EnvBlock(ABC):
    """Environments `first_env` … of a group, each with `agents_per_env` rows of `rows` one after the other."""

    agents_come_and_go = False  # True: `rows.present` says which rows have an agent
    unit = "row"  # what messages call one environment

    def __init__(
        self, name: str, envs: list[Any], limit: int, of: Spaces, first_env: int = 0, agents_per_env: int = 1
    ) -> None:
        self.name = name
        self.envs = envs
        self.of = of
        self.agents_per_env = agents_per_env
        self.seed = 0
        self.tick = 0  # steps since `reset`
        self.success_seen = False
        self.infos = InfoMeans(len(envs) * agents_per_env)
        self._first_env = first_env
        self._to_row = of.to_row
        self._write = of.seen.write if isinstance(of.seen, RowSpace | ChoiceRow) else None  # straight into a row
        self._shape = of.seen.shape
        self._dtype: Any = None  # of observations that were looked at and can be stored as they come
        self._row_space = of.obs if isinstance(of.obs, RowSpace) else None
        self._may_be_nan = of.obs.dtype == np.float32 or self._row_space is not None
        self._limit = limit
        self.limit = 0 if limit == NO_LIMIT else limit  # steps an episode may take; 0: no end is known
        self._steps: list[Callable[[Any], Any]] = [env.step for env in self.envs]
        self._started = [0] * len(self.envs)  # tick at which the episode began
        self._lost: dict[int, int] = {}  # environments whose episode cannot go on → seed of the next
        self._first_choices = np.array([choice.start for choice in choice_slices(of.action)], int)  # in a mask
        self._flags_set = True  # by the last step; shared memory may hold those of a worker that died
        self.use(Rows.alone(len(envs) * agents_per_env, of))

    def use(self, rows: Rows) -> None:
        """Take actions from these arrays and put results there: a worker shares them."""
        self.rows = rows
        self._seen = rows.obs
        if self.of.mask:  # a mask from elsewhere lies behind what was seen
            self._seen = rows.obs[:, : math.prod(self._shape)].reshape(-1, *self._shape)
        has_masks = self._row_space is not None and self._row_space.mask is not None
        self._masks = self._row_space.mask_of(rows.obs) if self._row_space is not None and has_masks else None

    @abstractmethod
    def step(self, actions: Sequence[Any]) -> None:
        """One step of every environment, with an action a row as it takes it; ended episodes begin anew."""

    @abstractmethod
    def _store_first(self, env: int, obs: Any, info: Any) -> None:
        """Put what `reset` gave into the environment's rows."""

    def reset(self, seed: int) -> None:
        self.seed, self.tick = seed, 0
        self.infos.load(self.infos.names, [])  # the episodes so far do not count
        self._lost.clear()
        self._steps = [env.step for env in self.envs]
        for env in range(len(self.envs)):
            self._begin_episode(env, self._new_seed(env))
        self._check_masks()

    def lose_episodes(self, seed: int, tick: int, attempt: int) -> None:
        """Take the place of a block that died: the next step ends every row, at what it observed last."""
        self.seed, self.tick = seed, tick
        for env in range(len(self.envs)):
            self._lose(env, attempt)

    def state(self) -> State:
        envs = [lost_state(_LOST) if i in self._lost else snapshot(env) for i, env in enumerate(self.envs)]
        elapsed = [self.tick - started for started in self._started]
        told = {"info_names": self.infos.names, "infos": self.infos.running()} if self.infos.names else {}
        return {"elapsed": elapsed, "success_seen": self.success_seen, **told, "envs": envs}

    def load_state(self, seed: int, tick: int, state: State) -> list[str]:
        """Continue; `rows` holds the last observations already. Why episodes were lost, if any were."""
        self.seed, self.tick, self.success_seen = seed, tick, bool(state["success_seen"])
        self.infos.load(state.get("info_names", []), state.get("infos", []))
        if len(state["elapsed"]) != len(self.envs) or len(state["envs"]) != len(self.envs):
            raise CheckpointError(
                f"The checkpoint does not hold the {len(self.envs)} environments of {self.name}."
            )
        self._lost.clear()
        self._steps = [env.step for env in self.envs]
        self._started = [tick - elapsed for elapsed in state["elapsed"]]
        reasons = []
        for i, (env, saved) in enumerate(zip(self.envs, state["envs"], strict=True)):
            self._reset_env(i, seed=0)  # attributes that only exist after a reset must be there
            reason = restore(env, saved)
            if reason:
                self._lose(i, attempt=0)
                reasons.append(reason)
        return reasons

    def close(self) -> None:
        for env in self.envs:
            try:
                env.close()
            except (Exception, SystemExit) as error:  # noqa: BLE001 (there is nothing left to lose)
                failed = f"{self.name} failed to close: {tell_exception(error)}"
                warnings.warn(failed, RuntimeWarning, stacklevel=2)
        self.envs = []

    # Episodes -------------------------------------------------------------------------------------
    def _begin_episode(self, env: int, seed: int | None) -> None:
        obs, info = self._reset_env(env, seed)
        self._started[env] = self.tick
        self._store_first(env, obs, info)
        if self._may_be_nan:
            first, stop = env * self.agents_per_env, (env + 1) * self.agents_per_env
            self._check_finite("first observation", self._numbers(self.rows.obs[first:stop]), first)

    def _reset_env(self, env: int, seed: int | None) -> tuple[Any, Any]:
        try:
            result = self.envs[env].reset(seed=seed)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise self._raised(env, "reset", error) from error
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise self._broken(env, "reset", f"gives {form_of(result)}; it must give (obs, info).")
        return result[0], result[1]

    def _clear_ends(self, any_ended: bool) -> None:
        """Before ends are written: all that was observed becomes `final_obs`, and no row has ended."""
        rows = self.rows
        if self._may_be_nan:
            self._check_finite("observation", self._numbers(rows.obs))
        self._check_finite("reward", rows.reward)
        if self._flags_set:
            rows.terminated.fill(False)
            rows.truncated.fill(False)
        self._flags_set = any_ended
        rows.final_obs[...] = rows.obs
        if self.success_seen:
            rows.success.fill(np.nan)

    def _end_row(self, row: int, terminated: bool, info: Any) -> None:
        self.rows.terminated[row] = terminated
        self.rows.truncated[row] = not terminated  # an episode that did both was over anyway
        self._look_for_success(info)
        self.rows.success[row] = _success_of(info)
        if self.infos.names:
            self.rows.info[row, : len(self.infos.names)] = self.infos.take(row)

    def _restart(self, env: int, seed: int | None) -> None:
        """A new episode, from a seed that replaces `seed` where the last episode was lost."""
        lost_seed = self._lost.pop(env, None)
        if lost_seed is not None:
            self._steps[env] = self.envs[env].step
            seed = lost_seed
        self._begin_episode(env, seed)

    def _lose(self, env: int, attempt: int) -> None:
        self._lost[env] = self._new_seed(env, self.tick, attempt)
        self._steps[env] = _step_of_lost_episode

    def _new_seed(self, env: int, *path: int) -> int:
        return derive_seed(self.seed, self._first_env + env, *path) % NUM_SEEDS

    def _look_for_success(self, info: Any) -> None:
        if not isinstance(info, dict):
            raise EnvError(f"{self.name} gives an info that is a {type(info).__name__}; it must be a dict.")
        self.success_seen = self.success_seen or any(key in info for key in SUCCESS_KEYS)

    # Values ---------------------------------------------------------------------------------------
    def _numbers(self, obs: np.ndarray) -> np.ndarray:
        """What of rows of observations may be NaN; the whole of them where all of it is float32."""
        return self._row_space.vectors_of(obs) if self._row_space is not None and self._row_space.packed else obs

    def _store(self, row: int, obs: Any) -> None:
        try:
            if self._write is not None:
                self._write(obs, self._seen[row])
                return
            array = np.asarray(obs) if self._to_row is None else self._to_row(obs)
        except Exception as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            said = f"does not fit its space: {type(error).__name__}: {why}"
            raise EnvError(f"{self._observation(row)} {said}") from error
        if array.dtype.kind not in "fiub":
            raise EnvError(f"{self._observation(row)} is not made of real numbers: it is {form_of(obs)}.")
        if array.shape != self._shape:
            said = f"has shape {array.shape}; its observation space says {self._shape}."
            raise EnvError(f"{self._observation(row)} {said}")
        if self._seen.dtype == np.float32 or array.dtype == np.uint8:
            self._dtype = array.dtype  # the next of this kind need no second look
        elif not ((array >= 0) & (array <= 255)).all():
            said = f"has {array.dtype} values outside 0 to 255; its space says uint8."
            raise EnvError(f"{self._observation(row)} {said}")
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and that is told
            self._seen[row] = array

    # Masks of valid actions -----------------------------------------------------------------------
    def _store_masks(self, first_row: int, infos: Sequence[Any]) -> None:
        """Which actions are valid next, in as many rows as there are infos, where no observation says it."""
        if not self.of.mask:
            return
        assert self._masks is not None
        stored = self._masks[first_row : first_row + len(infos)]
        given = self._given_masks(first_row, infos)
        try:
            masks = np.array(given)  # in one call: one for each row would take several times as long
        except (TypeError, ValueError):  # they have several shapes, or none
            masks = np.empty(0)
        if masks.shape != stored.shape or masks.dtype.kind not in "fiub":
            raise self._no_mask(first_row, given)
        np.not_equal(masks, 0, out=stored)

    def _given_masks(self, first_row: int, infos: Sequence[Any]) -> list[Any]:
        if self.of.mask == "method":
            return [self._ask_for_mask(first_row + i) for i in range(len(infos))]
        try:
            return [info[MASK] for info in infos]
        except (KeyError, TypeError):
            # After the last step nobody acts, and many give no mask; `_check_masks` looks at those who do.
            assert self._masks is not None
            missing = np.zeros(self._masks.shape[1:], bool)
            return [info.get(MASK, missing) if isinstance(info, dict) else missing for info in infos]

    def _ask_for_mask(self, row: int) -> Any:
        env = row // self.agents_per_env
        try:
            return self.envs[env].get_wrapper_attr("action_masks")()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise self._raised(env, "action_masks", error) from error

    def _no_mask(self, first_row: int, given: Sequence[Any]) -> EnvError:
        """What is wrong with the first that is no mask."""
        assert self._masks is not None
        choices = self._masks.shape[1]
        wrong = next(i for i, mask in enumerate(given) if not _are_numbers(mask, choices))
        wanted = f"{choices} numbers, 1 where an action is valid"
        return self._not_a(first_row + wrong, MASK, given[wrong], wanted)

    def _check_masks(self) -> None:
        """Every agent that is there has a valid action, in each of its choices."""
        if self._masks is None:
            return
        is_valid = np.maximum.reduceat(self._masks, self._first_choices, axis=1)  # [rows, choices]
        if is_valid.all():  # at every step: few calls
            return
        has_choice = is_valid.all(1)
        if self.agents_come_and_go:
            has_choice |= ~self.rows.present
        if not has_choice.all():
            row = int(np.argmin(has_choice))
            raise EnvError(
                f"{self.name}: the mask of {self._place(row)} at step {self.tick} leaves no valid action, or was "
                "not given, though its episode has not ended. Mark at least one in each choice."
            )

    # Numbers --------------------------------------------------------------------------------------
    def _number(self, row: int, what: str, value: Any) -> float:
        """A reward, if it can be one."""
        if type(value) is float:
            return value
        try:
            array = np.asarray(value)
            if array.ndim == 0 and array.dtype.kind in "fiub":
                return float(array)
        except Exception:  # noqa: BLE001 (whatever a foreign object does when it is asked for a number)
            pass
        raise self._not_a(row, what, value, "one real number")

    def _flag(self, row: int, what: str, value: Any) -> bool:
        """`terminated` or `truncated`, if it can be one."""
        if type(value) in _FLAGS:
            return bool(value)
        try:
            array = np.asarray(value)
            if array.ndim == 0 and array.dtype.kind in "iub":
                return bool(array)
        except Exception:  # noqa: BLE001
            pass
        raise self._not_a(row, what, value, "True or False")

    def _not_a(self, row: int, what: str, value: Any, wanted: str) -> EnvError:
        where = f"{self.name}: the {what} of {self._place(row)} at step {self.tick}"
        return EnvError(f"{where} is {form_of(value)}; it must be {wanted}.")

    def _check_finite(self, what: str, values: np.ndarray, first: int = 0) -> None:
        if math.isfinite(np.add.reduce(values, axis=None)):  # quicker than looking at each
            return
        finite = np.isfinite(values)
        if finite.all():  # only their sum was too large
            return
        row, *index = (int(i) for i in np.argwhere(~finite)[0])
        at = f" at index {index[0]}" if index else ""
        raise EnvError(
            f"{self.name}: the {what} of {self._place(first + row)} at step {self.tick} is "
            f"{values[(row, *index)]}{at}. An environment must give finite numbers."
        )

    def _place(self, row: int) -> str:
        """What messages call a row."""
        return f"row {self._first_env * self.agents_per_env + row}"

    def _observation(self, row: int) -> str:
        """What messages call what a row shows."""
        return f"{self.name}: the observation of {self._place(row)} at step {self.tick}"

    def _raised(self, env: int, where: str, error: BaseException) -> EnvRaisedError:
        what = tell_exception(error)
        return EnvRaisedError(f"{self.name} raised in {where}() of {self._moment(env)}: {what}")

    def _broken(self, env: int, where: str, problem: str) -> EnvError:
        return EnvError(f"{self.name}: {where}() of {self._moment(env)} {problem}")

    def _moment(self, env: int) -> str:
        return f"{self.unit} {self._first_env + env} at step {self.tick}"


class GymBlock(EnvBlock):
    """Gymnasium environments, one a row. Later episodes continue an environment's own random stream."""

    def step(self, actions: Sequence[Any]) -> None:
        self.tick += 1
        deadline, started = self.tick - self._limit, self._started
        obs_out, reward_out, shape, plain = self._seen, self.rows.reward, self._shape, self._to_row is None
        dtype = self._dtype
        infos: list[Any] = []
        ended: list[tuple[int, Any, dict[str, Any]]] = []
        info: Any = {}
        for row, (step, action) in enumerate(zip(self._steps, actions, strict=True)):
            try:
                result = step(action)
            except LostEpisodeError:  # the last observation is still in its place
                reward_out[row] = 0.0
                ended.append((row, False, {}))
                infos.append({} if self._masks is None else {MASK: self._masks[row]})
                continue
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # also sys.exit(): an environment does not end a training
                raise self._raised(row, "step", error) from error
            try:
                obs, reward, terminated, truncated, info = result
            except (TypeError, ValueError):
                raise self._broken(row, "step", f"gives {form_of(result)}; {STEP_FORM}") from None
            if type(reward) not in NUMBERS:
                reward = self._number(row, "reward", reward)
            if terminated is not False and terminated is not True:
                terminated = self._flag(row, "terminated", terminated)
            if truncated is not False and truncated is not True:
                truncated = self._flag(row, "truncated", truncated)
            try:
                reward_out[row] = reward
            except OverflowError:
                raise self._not_a(row, "reward", reward, "a float32") from None
            if plain and type(obs) is np.ndarray and obs.shape == shape and obs.dtype is dtype:
                obs_out[row] = obs
            else:
                self._store(row, obs)
            infos.append(info)
            if isinstance(info, dict) and info:
                self.infos.add(row, info)
            if terminated or truncated or started[row] <= deadline:
                ended.append((row, terminated, info))
        self._store_masks(0, infos)
        self._clear_ends(bool(ended))
        for row, terminated, info in ended:
            self._end_row(row, bool(terminated), info)
            self._restart(row, seed=None)
        self._check_masks()
        if self.tick == 1:
            self._look_for_success(info)

    def _store_first(self, env: int, obs: Any, info: Any) -> None:
        self._store(env, obs)
        self._store_masks(env, [info])
        if self.tick == 0:
            self._look_for_success(info)


STEP_FORM = "it must give (obs, reward, terminated, truncated, info)."


def _success_of(info: dict[str, Any]) -> float:
    value: Any = next((info[key] for key in SUCCESS_KEYS if key in info), None)
    try:
        return float(value) if type(value) in NUMBERS else math.nan
    except OverflowError:
        return math.nan


def form_of(value: Any) -> str:
    """What a value is, in a few words: it may be large, or its own text may be anything."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} and shape {value.shape}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)} value{'s' * (len(value) != 1)}"
    name = type(value).__name__
    if value is None or not isinstance(value, str | complex | int):
        return "None" if value is None else f"a {name}"
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**12 else "too large"
    return f"a {name} ({text if len(text) < 40 else text[:37] + '...'})"


def _are_numbers(value: Any, count: int) -> bool:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        return False
    return array.shape == (count,) and array.dtype.kind in "fiub"


def _step_of_lost_episode(action: Any) -> Any:
    raise LostEpisodeError


_told: set[str] = set()


def warn_inexact(name: str, reasons: Sequence[str]) -> None:
    """Once for each environment: a long run saves many times."""
    unexpected = [reason for reason in reasons if reason != _LOST]
    if unexpected and name not in _told:
        _told.add(name)
        warnings.warn(
            f"{name} cannot be saved exactly ({unexpected[0]}): its episodes restart on resume.",
            RuntimeWarning,
            stacklevel=3,
        )


class GrowthGuard:
    """Says once that what is saved of a group's environments has become large, and where it lies."""

    def __init__(self) -> None:
        self._first = 0  # bytes
        self._said = False

    def look_at(self, name: str, envs: Sequence[State]) -> None:
        total = sum(env["size"] for env in envs)
        self._first = self._first or total
        grown = total > max(_SMALL_STATE, _GROWTH * self._first)
        if self._said or not (grown or total > LARGE_STATE):
            return
        self._said = True
        path, size = largest_part(max(envs, key=lambda env: env["size"]))
        warnings.warn(
            f"{name} keeps so much in its attributes that its part of a checkpoint has grown to "
            f"{total / 1e6:,.1f} MB. The largest is {path} with {size / 1e6:,.1f} MB in one environment. If no "
            "step needs it, empty it in reset(), or leave it out of what ludus_state() gives: docs/gymnasium.md.",
            RuntimeWarning,
            stacklevel=3,
        )
