"""The loop over a block of PettingZoo parallel environments, the same in-process and in a worker process.

Each agent that may ever appear has a row of its own. A row is present while its agent is in `env.agents`. When
the agent dies, its row ends like any episode and is absent until the agent, or the whole environment, begins anew.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ludus.envs.gym.block import STEP_FORM, EnvBlock, LostEpisodeError, form_of
from ludus.envs.gym.spaces import Spaces
from ludus.errors import EnvError


class _Outcome(NamedTuple):
    """What a step did to the rows of one environment."""

    env: int
    ended: list[tuple[int, bool, dict[str, Any]]]  # row, terminated (or else truncated), info
    present: set[int]  # rows with an agent now
    over: bool  # nobody is left, or time ran out: a new episode begins


class ParallelBlock(EnvBlock):
    """Parallel environments. Every episode has a seed of its own: many reset to a random one if given none."""

    agents_come_and_go = True
    unit = "environment"

    def __init__(self, name: str, envs: list[Any], limit: int, of: Spaces, first_env: int = 0) -> None:
        self._agents = list(envs[0].possible_agents)
        self._known = set(self._agents)
        super().__init__(name, envs, limit, of, first_env, len(self._agents))

    def step(self, actions: Sequence[Any]) -> None:
        self.tick += 1
        self.rows.reward.fill(0.0)
        outcomes = [self._step_env(env, actions) for env in range(len(self.envs))]
        self._clear_ends(any(outcome.ended for outcome in outcomes))
        for outcome in outcomes:
            for row, terminated, info in outcome.ended:
                self._end_row(row, terminated, info)
            if outcome.over:
                self._restart(outcome.env, self._new_seed(outcome.env, self.tick))
            else:
                self._set_present(outcome.env, outcome.present)
        self._check_masks()

    def _step_env(self, env: int, actions: Sequence[Any]) -> _Outcome:
        present = self.rows.present
        acting = {agent: row for agent, row in self._rows_of(env).items() if present[row]}
        try:
            result = self._steps[env]({agent: actions[row] for agent, row in acting.items()})
        except LostEpisodeError:  # the last observations are still in their places
            return _Outcome(env, [(row, False, {}) for row in acting.values()], set(), over=True)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also sys.exit(): an environment does not end a training
            raise self._raised(env, "step", error) from error
        obs, rewards, terminated, truncated, infos = self._dicts(env, result)
        flags = {}
        for agent, row in acting.items():
            self.rows.reward[row] = self._number(row, "reward", rewards.get(agent, 0.0))
            ends, is_cut = terminated.get(agent, False), truncated.get(agent, False)
            info = infos.get(agent) or {}
            if isinstance(info, dict):
                self.infos.add(row, info)
            flags[agent] = self._flag(row, "terminated", ends), self._flag(row, "truncated", is_cut), info
        here = self._agents_here(env)
        self._store_all({**acting, **here}, here, obs, infos, "step")
        if self.tick == 1:
            self._look_at_infos(infos)
        timed_out = self._started[env] <= self.tick - self._limit
        ended, left = [], set(here)
        for agent, (ends, is_cut, info) in flags.items():
            vanished = agent not in here and not is_cut  # without a word: that is an end, too
            if ends or is_cut or vanished:
                left.discard(agent)
            elif not timed_out:
                continue
            ended.append((acting[agent], ends or vanished, info))
        return _Outcome(env, ended, set(here.values()), over=timed_out or not left)

    def _dicts(self, env: int, result: Any) -> Any:
        """What step() gave, if it has the form it must have."""
        if not isinstance(result, tuple | list) or len(result) != 5:
            raise self._broken(env, "step", f"gives {form_of(result)}; {STEP_FORM}")
        wrong = [part for part in result if not isinstance(part, dict)]
        if wrong:
            raise self._broken(env, "step", f"gives {form_of(wrong[0])} where a dict of the agents belongs.")
        return result

    def _store_first(self, env: int, obs: Any, info: Any) -> None:
        here = self._agents_here(env)
        if not here:
            raise EnvError(f"{self.name}: environment {self._first_env + env} has no agents after reset().")
        self._set_present(env, set(here.values()))
        self._store_all(here, here, obs, info, "reset")
        if self.tick == 0:
            self._look_at_infos(info)

    # Agents ---------------------------------------------------------------------------------------
    def _rows_of(self, env: int) -> dict[Any, int]:
        """The row of every agent that may appear."""
        first = env * self.agents_per_env
        return {agent: first + i for i, agent in enumerate(self._agents)}

    def _agents_here(self, env: int) -> dict[Any, int]:
        """The rows of the agents that act next."""
        rows, agents = self._rows_of(env), self.envs[env].agents
        try:
            stranger = next((agent for agent in agents if agent not in self._known), None)
        except TypeError:
            raise EnvError(
                f"{self.name} has agents that are {form_of(agents)}; a list of names is needed."
            ) from None
        if stranger is not None:
            raise EnvError(f"{self.name} has an agent {stranger!r} that is not one of its possible_agents.")
        return {agent: rows[agent] for agent in agents}

    def _set_present(self, env: int, present: set[int]) -> None:
        for row in self._rows_of(env).values():
            self.rows.present[row] = row in present
            if row not in present:
                self.rows.obs[row] = 0

    def _store_all(self, agents: dict[Any, int], needed: dict[Any, int], obs: Any, infos: Any, where: str) -> None:
        """Observations of all who gave one; who has died may give none, and keeps the last."""
        if not isinstance(obs, dict):
            raise EnvError(f"{self.name}: {where}() gives observations as a {type(obs).__name__}, not as a dict.")
        for agent, row in agents.items():
            seen = obs.get(agent)
            if seen is not None:
                self._store(row, seen)
                self._store_masks(row, [infos.get(agent) if isinstance(infos, dict) else None])
            elif agent in needed:
                raise EnvError(f"{self.name}: {where}() gives no observation of {self._place(row)}.")

    def _look_at_infos(self, infos: Any) -> None:
        if not isinstance(infos, dict):
            raise EnvError(f"{self.name} gives infos that are {form_of(infos)}; they must be a dict.")
        for info in infos.values():
            self._look_for_success(info or {})

    def _place(self, row: int) -> str:
        env, index = divmod(row, self.agents_per_env)
        return f"{super()._place(row)} ({self._agents[index]!r} of environment {self._first_env + env})"
