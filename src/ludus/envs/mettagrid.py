"""Multi-agent grid worlds on MettaGrid's own engine (the package `mettagrid`, an optional extra).

    env = make_mettagrid(MettagridConfig("navigation"), num_envs=16)

The engine describes what an agent sees as tokens (position, feature, value). A network learns little from such
a list, so by default each row observes planes instead: one map of its surroundings for each thing it can see.
"""

import importlib
import importlib.metadata
import logging
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from ludus.envs.config import MettagridConfig
from ludus.envs.gym.block import warn_inexact
from ludus.envs.row_state import check_fits
from ludus.envs.vec import State, Step, VecEnv, derive_seed
from ludus.errors import CheckpointError, ConfigError, EnvError, did_you_mean

VERSION = "0.26.22"  # its interface changes every few weeks, so one version is meant
_INSTALL = "pip install 'ludus[mettagrid]' (Python 3.11 or 3.12)"
_FILLING, _WHOLE_AGENT = 0xFF, 0xFE  # positions of tokens without meaning, and of those about no cell
_NUM_SEEDS = 2**31  # the engine takes no more


def make_mettagrid(config: MettagridConfig, num_envs: int) -> VecEnv:
    """A group of `num_envs` worlds."""
    task = find_task(config.task)
    world = task.build(config.agents or task.agents)
    world.game.max_steps = config.max_steps or world.game.max_steps
    return MettagridVecEnv(f"mettagrid:{config.task}", world, num_envs, config.observation)


# The package ----------------------------------------------------------------------------------------
def part(name: str) -> Any:
    """The module `mettagrid.name`, or the sentence that says how to get it."""
    level, handlers = logging.root.level, list(logging.root.handlers)
    try:
        module = importlib.import_module(f"mettagrid.{name}")
        installed = importlib.metadata.version("mettagrid")
    except ImportError as error:
        raise ConfigError(f"mettagrid tasks need the package mettagrid ({error}): {_INSTALL}.") from error
    finally:  # when it is imported, it changes the logging of the whole program
        logging.root.setLevel(level)
        logging.root.handlers[:] = handlers
    if installed != VERSION:
        raise ConfigError(f"mettagrid {installed} is installed, but Ludus works with {VERSION}: {_INSTALL}.")
    return module


# Tasks ----------------------------------------------------------------------------------------------
# The package's builders make rooms and reward hearts, but nothing in them gives a heart: that is added here.
def _navigation(agents: int) -> Any:
    """Hearts lie about in a room; who walks into one has it."""
    world = part("builder.envs").make_navigation(agents)
    world.game.objects["altar"] = _find("altar", "heart")
    return _ready(world, ["heart"], 100, {"wall": 6, "altar": 10})


def _assembly(agents: int) -> Any:
    """Agents carry ore from generators to altars, which make hearts of it, one piece at a time."""
    rules = part("config.handler_config")
    mine, forge = rules.updateActor({"ore": 1}), rules.updateActor({"ore": -1, "heart": 1})
    generator = _thing("generator", rules.Handler(mutations=[mine]))
    altar = _thing("altar", rules.Handler(filters=[rules.actorHas({"ore": 1})], mutations=[forge]))
    objects = {"generator": generator, "altar": altar}
    world = part("builder.envs").make_assembly_lines(agents, 1, objects, {})
    world.game.agent.inventory.limits["heart"].base = 255
    return _ready(world, ["ore", "heart"], 25, {"wall": 2, "generator": 1, "altar": 1})


def _arena(agents: int) -> Any:
    """As navigation, but lasers lie there too: who has one can rob another agent of a heart, and spends it."""
    rules = part("config.handler_config")
    world = part("builder.envs").make_arena(agents)
    world.game.objects |= {"altar": _find("altar", "heart"), "armory": _find("armory", "laser")}
    # In this version the engine's own attack does nothing; a rule for walking into an agent does its work.
    world.game.actions.attack = type(world.game.actions.attack)(enabled=False)
    world.game.agent.on_use_handler = rules.Handler(
        filters=[rules.actorHas({"laser": 1}), rules.targetHas({"heart": 1})],
        mutations=[rules.updateActor({"laser": -1}), rules.withdraw({"heart": 1})],
    )
    return _ready(world, ["heart", "laser"], 80, {"wall": 5, "altar": 6, "armory": 2})


def _thing(name: str, on_use: Any, **holds: int) -> Any:
    config = part("config.mettagrid_config")
    return config.GridObjectConfig(name=name, on_use_handler=on_use, inventory={"initial": holds})


def _find(name: str, resource: str) -> Any:
    """A thing that gives one piece of a resource and is gone."""
    rules = part("config.handler_config")
    give = rules.withdraw({resource: 1}, remove_when_empty=True)
    return _thing(name, rules.Handler(mutations=[give]), **{resource: 1})


def _ready(world: Any, resources: list[str], cells: int, objects: dict[str, int]) -> Any:
    """What all tasks have in common: a room with so many cells and objects for each agent, in random places."""
    game, agents = world.game, world.game.num_agents
    room = part("map_builder.random_map").RandomMapBuilder.Config(agents=agents, border_width=1)
    room.width = room.height = 2 + math.ceil(math.sqrt(cells * agents))
    room.objects = {name: number * agents for name, number in objects.items()}
    game.map_builder, game.resource_names, game.max_steps = room, resources, 100
    game.episode_truncates = True  # time runs out; nothing has come to an end
    game.actions.change_vibe.enabled = game.protocol_details_obs = False
    game.obs.width, game.obs.height, game.obs.num_tokens = 9, 9, 256
    game.obs.global_obs.last_action = game.obs.global_obs.last_reward = False
    return world


class Task(NamedTuple):
    """A world that has a name."""

    summary: str
    agents: int  # usual number
    build: Callable[[int], Any]  # number of agents → the engine's MettaGridConfig


TASKS = {
    "navigation": Task("agents gather hearts", 4, _navigation),
    "assembly": Task("agents carry ore from generators to altars, which make hearts of it", 4, _assembly),
    "arena": Task("agents gather hearts and rob each other with lasers", 8, _arena),
}


def find_task(name: str) -> Task:
    if name not in TASKS:
        known = f"{did_you_mean(name, TASKS)} There are {', '.join(TASKS)}."
        raise ConfigError(f"There is no mettagrid task {name!r}.{known}")
    return TASKS[name]


# Observations ---------------------------------------------------------------------------------------
class Planes:
    """Turns tokens [rows, tokens, 3] into planes [rows, planes, height, width], with the agent in the middle.

    A plane for each kind of object is 255 where one is, a plane for each resource holds who or what has how much
    of it, and the last holds the share of the episode that is over, in the agent's own cell. Amounts are on a
    logarithmic scale from 0 to 255: one heart or none matters more than 100 or 101.
    """

    def __init__(self, game: Any) -> None:
        ids, height, width = game.id_map(), game.obs.height, game.obs.width
        tags = ids.tag_names()
        shown = [*(f"inv:{name}" for name in game.resource_names), "episode_completion_pct"]
        self.names = [*tags, *shown]
        self.shape = (len(self.names), height, width)
        starts = np.arange(len(self.names)) * (height * width)
        # Tables that say where a token goes and what it writes. The others go to one more plane, not handed out.
        self._start = np.full((256, 256), len(self.names) * height * width)  # [feature, value]
        self._level = np.tile(np.arange(256, dtype=np.uint8), (256, 1))  # [feature, value]
        self._start[ids.feature_id("tag"), : len(tags)] = starts[: len(tags)]
        self._level[ids.feature_id("tag")] = 255
        for name, start in zip(shown, starts[len(tags) :], strict=True):
            self._start[ids.feature_id(name)] = start
            if name.startswith("inv:"):
                self._level[ids.feature_id(name)] = np.round(255 * np.log2(1 + np.arange(256)) / 8)
        y, x = np.divmod(np.arange(256), 16)
        self._cell = np.minimum(y * width + x, height * width - 1)  # [position], which is 16 y + x
        self._cell[_WHOLE_AGENT] = height // 2 * width + width // 2

    def __call__(self, tokens: np.ndarray) -> np.ndarray:
        planes, height, width = self.shape
        used = int((tokens[:, :, 0] != _FILLING).sum(1).max())  # filling comes last
        position, feature, value = (tokens[:, :used, i] for i in range(3))
        grid = np.zeros((len(tokens), (planes + 1) * height * width), np.uint8)
        place = self._start[feature, value] + self._cell[position]
        place += np.arange(0, grid.size, grid.shape[1])[:, None]
        grid.reshape(-1)[place] = self._level[feature, value]
        return np.ascontiguousarray(grid.reshape(len(tokens), planes + 1, height, width)[:, :planes])


# Stepping -------------------------------------------------------------------------------------------
class MettagridVecEnv(VecEnv):
    """Worlds that step one after the other. Row = world × agents + agent."""

    def __init__(self, name: str, world: Any, num_envs: int, observation: str) -> None:
        self.name, self.device = name, torch.device("cpu")
        self.world, game = world, world.game
        self.agents_per_env = game.num_agents
        rows = self.num_rows = num_envs * game.num_agents
        # The engine reads and writes these in place.
        self._tokens = np.zeros((rows, game.obs.num_tokens, 3), np.uint8)
        self._reward = np.zeros(rows, np.float32)
        self._terminated, self._truncated = np.zeros((2, rows), bool)
        self._action, vibe = np.zeros((2, rows), np.int32)
        shared = (self._tokens, self._terminated, self._truncated, self._reward, self._reward, self._action, vibe)
        self._engine = part("simulator.simulator")
        buffers = self._engine.Buffers  # in its order; the second reward stands for masks, which nobody uses
        self._memory = [buffers(*(array[self._rows(env)] for array in shared)) for env in range(num_envs)]
        self._planes = Planes(game) if observation == "planes" else None
        obs_shape = self._planes.shape if self._planes else self._tokens.shape[1:]
        self.obs_space = gym.spaces.Box(0, 255, obs_shape, np.uint8)
        self.action_space = gym.spaces.Discrete(len(game.actions.actions()))
        # An episode is determined by its seed and its actions, so these are what a checkpoint holds.
        self._seed, self._episode = 0, [0] * num_envs
        self._history = np.zeros((game.max_steps, rows), np.uint8)
        self.sims: list[Any] = [None] * num_envs
        self._stats = {f"{r}_{what}": f"{r}.{what}" for r in game.resource_names for what in ("gained", "lost")}
        self._stats["cells_visited"] = "cell.unique_visited"

    def reset(self, seed: int) -> Tensor:
        self._seed, self._episode = seed, [-1] * len(self.sims)
        for env in range(len(self.sims)):
            self._begin_next_episode(env)
        return self._observe(slice(None))

    def begin_step(self, action: Tensor) -> None:
        self._action[:] = action.numpy(force=True)

    def end_step(self) -> Step:
        for env, sim in enumerate(self.sims):
            self._history[sim.current_step, self._rows(env)] = self._action[self._rows(env)]
            sim.step()
        final_obs = self._observe(slice(None))
        reward, terminated = self._reward.copy(), self._terminated.copy()
        truncated = self._truncated & ~terminated
        ended = (terminated | truncated).reshape(len(self.sims), -1).all(1)
        metrics = torch.zeros((len(self._stats), self.num_rows))
        obs = final_obs.clone() if ended.any() else final_obs
        for env in np.flatnonzero(ended).tolist():
            rows = self._rows(env)
            metrics[:, rows] = self._read_metrics(env)
            self._begin_next_episode(env)
            obs[rows] = self._observe(rows)
        named = dict(zip(self._stats, metrics, strict=True))
        ends = torch.from_numpy(np.stack([terminated, truncated]))
        return Step(obs, torch.from_numpy(reward), ends[0], ends[1], final_obs, named)

    def state(self) -> State:
        steps = [sim.current_step for sim in self.sims]
        actions = torch.from_numpy(self._history[: max(steps)].copy())
        past = {"seed": self._seed, "episode": list(self._episode), "steps": steps, "actions": actions}
        return {**past, "obs": self._observe(slice(None))}

    def load_state(self, state: State) -> None:
        """Plays the saved actions again: the engine cannot be saved, but it repeats itself exactly."""
        check_fits(self, state)
        self._seed, self._episode = state["seed"], [number - 1 for number in state["episode"]]
        if len(state["actions"]) > len(self._history):
            raise CheckpointError(f"{self.name}: the checkpoint holds episodes longer than --env.max-steps.")
        self._history[: len(state["actions"])] = state["actions"].numpy()
        for env, steps in enumerate(state["steps"]):
            self._begin_next_episode(env)
            rows = self._rows(env)
            for action in self._history[:steps, rows]:
                self._action[rows] = action
                self.sims[env].step()
            if not torch.equal(self._observe(rows), state["obs"][rows]):
                warn_inexact(self.name, ["its episodes do not play again as they were saved"])
                self._begin_next_episode(env)

    def _rows(self, env: int) -> slice:
        return slice(env * self.agents_per_env, (env + 1) * self.agents_per_env)

    def _observe(self, rows: slice) -> Tensor:
        tokens = self._tokens[rows]
        return torch.from_numpy(self._planes(tokens) if self._planes else tokens.copy())

    def _begin_next_episode(self, env: int) -> None:
        self._episode[env] += 1
        seed = derive_seed(self._seed, env, self._episode[env]) % _NUM_SEEDS
        self.world.game.map_builder.seed = seed
        simulator = self._engine.Simulator()  # used a second time, it would count up the map's seed
        try:
            self.sims[env] = simulator.new_simulation(self.world, seed, buffers=self._memory[env])
        except Exception as error:
            raise EnvError(f"{self.name} cannot begin an episode: {type(error).__name__}: {error}") from error

    def _read_metrics(self, env: int) -> Tensor:
        """[metrics, agents]. The engine names only what happened."""
        agents = self.sims[env].episode_stats["agent"]
        return torch.tensor([[agent.get(key, 0.0) for agent in agents] for key in self._stats.values()])
