"""The step of every task on a batched simulator: act, simulate, score, restart the rows that ended.

A task says how an action becomes a control and how an episode begins; its tables of terms (terms.py) say what is
seen, what it is worth and when it ends. Episode ends, time limits, diverged simulations, randomisation and exact
state are handled here, once for all tasks.

A restart works in one of two ways. On the CPU only the rows that ended are computed. A simulator on a GPU does
it for all rows and keeps the result where an episode ended, since asking which those are would mean to wait
for the device. A task that returns what it would write, instead of writing it, fits both.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from math import isfinite
from types import MappingProxyType
from typing import NamedTuple

import gymnasium as gym
import mujoco
import numpy as np
import torch
from torch import Tensor

from ludus.envs.interface import Interface, column_names
from ludus.envs.mujoco.model_fields import CONSTANT_INPUTS
from ludus.envs.mujoco.randomization import Randomization, make_randomization, overrides
from ludus.envs.mujoco.settings import KINDS, TermSettings
from ludus.envs.mujoco.simulator import Simulator
from ludus.envs.mujoco.terms import Observations, Rewards, Table, Terminations, choose
from ludus.envs.row_space import ONLY_PART, RowSpace
from ludus.envs.vec import State, Step, VecEnv, restore_generator
from ludus.errors import ConfigError

Rows = slice | Tensor  # all rows, or sorted indices
ALL_ROWS = slice(None)
_FAILED_AT_0 = ("success", "completion")  # metrics that are 0 where a simulation diverged


class Score(NamedTuple):
    """What a step was worth to each row."""

    reward: Tensor  # [rows]
    terminated: Tensor  # [rows] bool
    metrics: dict[str, Tensor]  # each [rows]


class SimTask(VecEnv):
    """One row a simulation. Subclasses hold extra per-row tensors in `self.memory`, saved with the state.

    The last thing a subclass does when it is made is `use_terms`.
    """

    rewards: Rewards
    terminations: Terminations
    observations: Observations
    # What the numbers mean, for whoever runs the policy elsewhere: see `interface`. A task says what it knows.
    column_names: Mapping[str, Sequence[str]] = MappingProxyType({})  # of the columns of observation terms
    action_names: Sequence[str] = ()
    action_units: Sequence[str] = ()
    randomization: tuple[Randomization, ...] = ()
    _randomized: frozenset[str] = frozenset()  # model fields that differ between simulations
    _constants_change = False
    _keeps_actions = False
    _settles = False  # whether `settled` has anything to say
    _late: tuple[Randomization, ...] = ()  # those that change actions
    _rough: tuple[Randomization, ...] = ()  # those that disturb
    _blurred: tuple[Randomization, ...] = ()  # those that change observations

    def __init__(
        self,
        name: str,
        sim: Simulator,
        max_steps: int,
        obs: int | RowSpace,
        action_space: gym.spaces.Box,
    ) -> None:
        """`obs`: how many numbers are observed, or the row of several parts."""
        self.name = name
        self.sim = sim
        self.num_rows = sim.num_sims
        self.device, self.dtype = sim.device, sim.dtype
        self.capturable, self.fault_advice = sim.capturable, sim.fault_advice
        self.max_steps = max_steps
        self.obs_space = gym.spaces.Box(-np.inf, np.inf, (obs,), np.float32) if isinstance(obs, int) else obs
        self.action_space = action_space
        self.generator = torch.Generator(device=sim.device)
        self.generators = (self.generator,)
        self.elapsed = torch.zeros(self.num_rows, dtype=torch.int64, device=self.device)
        self.memory: dict[str, Tensor] = {}
        self.diverged: Tensor | None = None  # [rows] bool, of the newest step; None: all are well
        dtype = torch.uint8 if self.obs_space.dtype == np.uint8 else torch.float32
        self._obs = torch.zeros((self.num_rows, *self.obs_space.shape), dtype=dtype, device=self.device)
        self._none_diverged = torch.zeros(self.num_rows, device=self.device)
        self._never = torch.zeros(self.num_rows, dtype=torch.bool, device=self.device)

    # What a task says ---------------------------------------------------------------------------
    @abstractmethod
    def control(self, action: Tensor) -> None:
        """Write the simulator's controls for `action`, already clipped to the action space."""

    def look_at(self, rows: Rows) -> None:
        """Gather what several observation terms of `rows` read, for all of them."""

    def observe(self, rows: Rows) -> Tensor:
        """[n, obs] observations of `rows`."""
        self.look_at(rows)
        obs = self.observations.show(self, rows).float()
        for term in self._blurred:
            obs = term.see(self, obs, rows)
        return obs

    @abstractmethod
    def measure(self) -> dict[str, Tensor]:
        """Compute what several terms of the step just simulated read; may update `memory`. The task's metrics."""

    def score(self) -> Score:
        """What the step just simulated was worth."""
        metrics = self.measure()
        reward = self.rewards.pay(self)
        terminated, ended = self.terminations.judge(self)
        metrics |= self.rewards.metrics()
        metrics |= ended
        return Score(reward, terminated, metrics)

    @abstractmethod
    def new_episodes(self, rows: Rows, n: int) -> dict[str, Tensor]:
        """The start of `n` episodes, in `rows`: values [n, ...] of simulator fields and of `memory`, by name.

        Fields not named are the model's defaults. The old episodes of `rows` may still be in the simulator.
        """

    def settled(self, rows: Rows) -> dict[str, Tensor]:
        """State fields of episodes that begin in `rows`, [n, ...] by name, that need the derived fields.

        As `begun`, but the derived fields are computed anew thereafter. Asked for only where `_settles`.
        """
        return {}

    def begun(self, rows: Rows) -> dict[str, Tensor]:
        """What `memory` holds of episodes that begin in `rows`, where that needs the derived fields.

        They are current now. Rows in the middle of an episode may be asked for, too; the answer is not used.
        """
        return {}

    def out_of_time(self) -> Tensor:
        """[rows] bool: the episode has lasted as long as it may."""
        return self.elapsed >= self.max_steps

    # Its terms ----------------------------------------------------------------------------------
    def use_terms(
        self,
        settings: TermSettings,
        rewards: Table,
        terminations: Table,
        observations: Table,
        fused: bool = True,
    ) -> None:
        """The task's own tables, with what the settings change. `fused` as of `Rewards`."""
        tables = dict(zip(KINDS, (rewards, terminations, observations), strict=True))
        chosen = {kind: choose(kind, table, getattr(settings, kind)) for kind, table in tables.items()}
        if any(term.own for terms in chosen.values() for term in terms.values()):
            self._keep_actions()
        self.rewards = Rewards(chosen["rewards"], self.num_rows, self.dtype, self.device, fused)
        self.terminations = Terminations(chosen["terminations"], self._never)
        self.observations = Observations(chosen["observations"])
        if settings.observations:
            self._resize()
        self._randomize(make_randomization(settings.randomization))

    def _keep_actions(self) -> None:
        """For terms of the user's; a task's own need none."""
        self._keeps_actions = True
        size = self.action_space.shape
        assert size is not None
        for name in ("action", "last_action"):
            self.memory[name] = torch.zeros((self.num_rows, *size), device=self.device)

    def _resize(self) -> None:
        """Other observations have another size."""
        if isinstance(self.obs_space, RowSpace):
            raise ConfigError("--env.observations changes a single vector; with images or goals leave it empty.")
        if not self.observations.terms:
            raise ConfigError("--env.observations leaves nothing to be seen.")
        size = self.observe(ALL_ROWS).shape[1]
        self.obs_space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self._obs = torch.zeros((self.num_rows, size), device=self.device)

    def _randomize(self, terms: list[Randomization]) -> None:
        for term in terms:
            term.prepare(self)
        self.randomization = tuple(terms)
        self._constants_change = not CONSTANT_INPUTS.isdisjoint(self._randomized)
        ways = ("act", "disturb", "see")
        self._late, self._rough, self._blurred = (
            tuple(term for term in terms if overrides(term, way)) for way in ways
        )

    @property
    def action(self) -> Tensor:
        """[rows, size] the newest action that was chosen, for terms of the user's."""
        return self.memory["action"]

    @property
    def last_action(self) -> Tensor:
        """[rows, size] the action before that; zeros in the first step of an episode."""
        return self.memory["last_action"]

    def observation_columns(self) -> dict[str, slice]:
        """Where each observation term stands in a row."""
        self.look_at(ALL_ROWS)
        return self.observations.columns(self, ALL_ROWS)

    def angle_differences(self) -> dict[str, list[tuple[int, str]]]:
        """Observation terms that show how far joints are from somewhere: [(place in the term, joint)]."""
        return {}

    def interface(self) -> Interface:
        """What the numbers mean, as far as the task says it; parts of an observation with images have names."""
        seen: dict[str, list[str]] = {}
        if not isinstance(self.obs_space, RowSpace):
            sizes = {name: place.stop - place.start for name, place in self.observation_columns().items()}
            known = self.column_names
            seen[ONLY_PART] = [c for term, n in sizes.items() for c in column_names(term, n, known.get(term, ()))]
        control_dt = self.substeps * float(self.mj_model.opt.timestep)
        return Interface(seen, self.action_names, self.action_units, control_dt)

    def randomized_field(self, name: str) -> Tensor:
        """A model field that differs between simulations from now on; `Randomization.begin` gives its values."""
        self._randomized |= {name}
        return self.sim.model_field(name)

    # The contract -------------------------------------------------------------------------------
    @property
    def substeps(self) -> int:
        """Physics steps of one control step."""
        return self.sim.substeps

    @property
    def mj_model(self) -> mujoco.MjModel:
        """The model, for viewers and replays."""
        return self.sim.model

    def reset(self, seed: int) -> Tensor:
        self.generator.manual_seed(seed)
        return self.restart(torch.arange(self.num_rows, device=self.device))

    def restart(self, rows: Tensor) -> Tensor:
        """New episodes in `rows` (sorted indices), in the running random stream; their first observations."""
        if self.sim.capturable:
            self._restart_where(self._never.index_fill(0, rows, True))
        else:
            self._restart_rows(rows)
        return self._obs[rows]

    def begin_step(self, action: Tensor) -> None:
        low, high = self._action_bounds
        action = action.to(self.device).clamp(low, high)
        if self._keeps_actions:
            self.last_action.copy_(self.action)
            self.action.copy_(action)
        for term in self._late:
            action = term.act(self, action)
        for term in self._rough:
            term.disturb(self)
        self.control(action)
        self.sim.begin_step()

    def end_step(self) -> Step:
        self.diverged = diverged = self.sim.end_step()
        self.elapsed += 1
        reward, terminated, metrics = self.score()
        final_obs = self.observe(ALL_ROWS)
        truncated = self.out_of_time() & ~terminated
        metrics["diverged"] = self._none_diverged
        if diverged is not None:  # nothing such a row says of this step can be trusted
            final_obs = torch.where(diverged[:, None], self._obs, final_obs)
            reward = reward.masked_fill(diverged, 0.0)
            terminated, truncated = terminated & ~diverged, truncated | diverged
            metrics = {name: self._untold(name, value, diverged) for name, value in metrics.items()}
            metrics["diverged"] = diverged.float()
        if not self.capturable and not isfinite(float(reward.sum())):  # a GPU is not waited for
            self.rewards.blame(reward, self.name)
        self._obs.copy_(final_obs)
        done = terminated | truncated
        if self.sim.capturable:
            self._restart_where(done)
        elif len(rows := done.nonzero().squeeze(1)):
            self._restart_rows(rows)
        return Step(self._obs.clone(), reward.float(), terminated, truncated, final_obs, metrics)

    def _untold(self, name: str, value: Tensor, diverged: Tensor) -> Tensor:
        """A metric without what diverged rows say: they have failed, done nothing, and measured nothing (NaN).

        Which episode it was (`labels`) is as true as ever.
        """
        if name in self.labels:
            return value
        return value.masked_fill(diverged, 0.0 if name.startswith(_FAILED_AT_0) else torch.nan)

    def state(self) -> State:
        return {
            "sim": self.sim.state(),
            "elapsed": self.elapsed.clone(),
            "memory": {name: value.clone() for name, value in self.memory.items()},
            "obs": self._obs.clone(),
            "generator": self.generator.get_state(),
            "reward_totals": self.rewards.totals.clone(),
        }

    def load_state(self, state: State) -> None:
        self.sim.load_state(state["sim"])
        self.elapsed.copy_(state["elapsed"])
        for name, value in self.memory.items():
            value.copy_(state["memory"][name])
        self._obs.copy_(state["obs"])
        restore_generator(self.generator, state["generator"])
        if "reward_totals" in state:  # older ones have none: what they miss is a part of one metric
            self.rewards.totals.copy_(state["reward_totals"])
        for term in self.randomization:
            term.loaded(self)

    def faults(self) -> dict[str, float]:
        return self.sim.faults()

    def close(self) -> None:
        self.sim.close()

    # Restarting ---------------------------------------------------------------------------------
    def _restart_rows(self, rows: Tensor) -> None:
        """New episodes in `rows`, and nothing done for the others."""
        start = self._live_starts(rows, len(rows))
        self.sim.reset(rows)
        for live, value in start:
            live[rows] = value
        if self._constants_change:
            self.sim.set_constants(rows)
        self.sim.forward(rows)
        if self._settles:
            for name, value in self.settled(rows).items():
                self.sim.field(name)[rows] = value
            self.sim.forward(rows)
        self.elapsed[rows] = 0
        self.rewards.forget(rows)
        for name, value in self.begun(rows).items():
            self.memory[name][rows] = value
        self._obs[rows] = self.observe(rows)

    def _restart_where(self, ended: Tensor) -> None:
        """New episodes where `ended`, [rows] bool, without asking where that is; tensors stay in place."""
        start = self._live_starts(ALL_ROWS, self.num_rows)
        self.sim.reset(ended)
        for live, value in start:
            _overwrite(live, value, ended)
        if self._constants_change:
            self.sim.set_constants(ended)
        self.sim.forward(ended)
        if self._settles:
            for name, value in self.settled(ALL_ROWS).items():
                _overwrite(self.sim.field(name), value, ended)
            self.sim.forward(ended)
        self.elapsed.masked_fill_(ended, 0)
        self.rewards.forget(ended)
        for name, value in self.begun(ALL_ROWS).items():
            _overwrite(self.memory[name], value, ended)
        _overwrite(self._obs, self.observe(ALL_ROWS), ended)

    def _starts(self, rows: Rows, n: int) -> dict[str, Tensor]:
        """`new_episodes`, and what is drawn for them besides."""
        values = self.new_episodes(rows, n)
        if self._keeps_actions:
            for name in ("action", "last_action"):
                values[name] = self.action.new_zeros((n, self.action.shape[1]))
        for term in self.randomization:
            term.begin(self, n, values)
        return values

    def _live_starts(self, rows: Rows, n: int) -> list[tuple[Tensor, Tensor]]:
        """The same values, each with what it is written into.

        A field that nobody asked for yet is found before the simulations are reset: finding it computes them anew.
        """
        return [(self._live(name), value) for name, value in self._starts(rows, n).items()]

    def _live(self, name: str) -> Tensor:
        """What a start means by a name: the task's memory, a model field, or else a field of the simulator."""
        if name in self.memory:
            return self.memory[name]
        return self.sim.model_field(name) if name in self._randomized else self.sim.field(name)

    @property
    def _action_bounds(self) -> tuple[Tensor, Tensor]:
        if not hasattr(self, "_bounds"):
            space = self.action_space
            assert isinstance(space, gym.spaces.Box)
            self._bounds = tuple(torch.as_tensor(b, device=self.device) for b in (space.low, space.high))
        return self._bounds  # type: ignore[return-value]

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Uniform random numbers from the task's own stream."""
        unit = torch.rand(shape, generator=self.generator, dtype=self.dtype, device=self.device)
        return low + (high - low) * unit

    def integers(self, bounds: tuple[int, ...], n: int) -> Tensor:
        """[n] whole numbers from the first bound to the last, both included, from the task's own stream."""
        low, high = bounds
        return self.uniform(low, high + 1, n).floor().long().clamp_(max=high)


def _overwrite(live: Tensor, value: Tensor, where: Tensor) -> None:
    """`value` into the rows of `live` that `where`, [rows] bool, names."""
    chosen = where.view(-1, *[1] * (live.dim() - 1))
    live.copy_(torch.where(chosen, value.to(live.dtype), live))
