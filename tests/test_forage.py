"""Forage: its rules against a slow simulation of one map, its random numbers, its maps, and exact continuation."""

from collections import deque
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from conftest import Recordings
from ludus.envs import forage
from ludus.envs.check import check_env
from ludus.envs.config import ForageConfig
from ludus.envs.forage import BLUE, FREE, RED, WALL, Forage, wall_map
from ludus.envs.vec import Step
from ludus.errors import ConfigError
from ludus.graphs import Graphed

MOVES = ((0, 0), (-1, 0), (0, 1), (1, 0), (0, -1))  # stay, north, east, south, west: row and column
LEVELS: dict[str, dict[str, Any]] = {
    "default": {},
    "crowd": {"width": 6, "height": 5, "agents": 5, "berries": 3, "window": 3, "episode_length": 15},
    "swap": {"swap": True, "width": 7, "height": 6, "berries": 5, "episode_length": 11, "cue_length": 7},
    "relay": {"relay": True, "agents": 3, "map": "pillars", "window": 1, "berries": 6},
    "rooms": {"map": "rooms", "window": 7, "width": 10, "agents": 1, "berries": 12, "cue_length": 32},
}


def make(num_envs: int = 3, evaluation: bool = False, device: str = "cpu", **settings: Any) -> Forage:
    return Forage(ForageConfig(**settings), num_envs, device, evaluation)


def random_actions(env: Forage, steps: int, seed: int = 0) -> Tensor:
    return torch.randint(5, (steps, env.num_rows), generator=torch.Generator().manual_seed(seed))


def assert_same(one: Step, other: Step) -> None:
    for a, b in zip((*one[:5], *one.metrics.values()), (*other[:5], *other.metrics.values()), strict=True):
        assert torch.equal(a.cpu().nan_to_num(-1.0), b.cpu().nan_to_num(-1.0))


def moments(env: Forage) -> Tensor:
    """[envs] 2 × steps done + the colour that pays first, as a saved state holds them."""
    world: Tensor = env.state()["world"]
    return world[:, -env.agents_per_env]


# The rules, written out ---------------------------------------------------------------------------------
class SlowMap:
    """One map. What is random (new maps, where berries grow) is taken over from the environment, and checked."""

    def __init__(self, env: Forage, number: int) -> None:
        self.env, self.number, self.config = env, number, env.config
        self.begin()
        moment = int(moments(env)[number])
        self.elapsed, self.first = moment // 2, (RED, BLUE)[moment % 2]

    def begin(self) -> None:
        self.grid, self.positions = self.env.grid(self.number), self.env.positions(self.number)
        assert np.array_equal(self.grid == WALL, wall_map(self.config))
        assert len({tuple(p) for p in self.positions}) == self.config.agents
        assert all(self.grid[tuple(p)] == FREE for p in self.positions)
        self.elapsed, self.felt = 0, [0] * self.config.agents
        self.eaten, self.right = np.zeros(self.config.agents), np.zeros(self.config.agents)
        self.check_numbers()

    def check_numbers(self) -> None:
        assert (self.grid == RED).sum() == (self.grid == BLUE).sum() == self.config.berries

    def paying(self) -> int:
        swapped = self.config.swap and self.elapsed >= self.config.episode_length // 2
        return RED + BLUE - self.first if swapped else self.first

    def step(self, actions: list[int], rewards: list[int]) -> None:
        for agent, action in enumerate(actions):
            target = self.positions[agent] + MOVES[action]
            if self.grid[tuple(target)] != WALL:
                self.positions[agent] = target
        expected, unpaid = self.grid.copy(), set(range(self.config.agents))
        for cell in {tuple(position) for position in self.positions}:
            if self.grid[cell] != FREE:  # one of those who are there eats
                eaters = [a for a in range(self.config.agents) if tuple(self.positions[a]) == cell and rewards[a]]
                assert len(eaters) == 1
                assert rewards[eaters[0]] == (1 if self.grid[cell] == self.paying() else -1)
                expected[cell] = FREE
                unpaid -= set(eaters)
        assert all(rewards[agent] == 0 for agent in unpaid)
        self.eaten += np.abs(rewards)
        self.right += np.array(rewards) > 0
        self.felt = rewards
        self.elapsed += 1
        if self.elapsed < self.config.episode_length:
            self.grow(expected)

    def grow(self, expected: np.ndarray) -> None:
        """As many berries as were eaten have appeared, in cells that were free; nothing else has changed."""
        before, self.grid = self.grid, self.env.grid(self.number)
        grown = self.grid != expected
        assert (before[grown] == FREE).all()
        assert np.isin(self.grid[grown], (RED, BLUE)).all()
        self.check_numbers()

    def observation(self, agent: int) -> list[int]:
        radius, (row, column) = self.config.window // 2, self.positions[agent]
        padded = np.pad(self.grid, radius, constant_values=WALL)
        seen = padded[row : row + self.config.window, column : column + self.config.window]
        others = np.zeros_like(padded)
        for other, (y, x) in enumerate(self.positions):
            others[y + radius, x + radius] |= other != agent
        others = others[row : row + self.config.window, column : column + self.config.window]
        window = np.stack([seen == WALL, seen == RED, seen == BLUE, others], axis=-1).reshape(-1).tolist()
        told = self.elapsed < self.config.cue_length and (agent == 0 or not self.config.relay)
        cue = [told and self.paying() == RED, told and self.paying() == BLUE]
        felt = [self.felt[agent] > 0, self.felt[agent] < 0] if self.config.swap else []
        return [int(value) for value in window + cue + felt]


def check_step(env: Forage, slow: list[SlowMap], step: Step, actions: Tensor) -> None:
    agents = env.agents_per_env
    for number, one in enumerate(slow):
        rows = slice(number * agents, (number + 1) * agents)
        one.step(actions[rows].tolist(), step.reward[rows].tolist())
        ended = one.elapsed == env.config.episode_length
        assert step.terminated[rows].tolist() == [ended] * agents
        if ended:
            assert step.metrics["berries"][rows].tolist() == one.eaten.tolist()
            shares = [r / e if e else None for r, e in zip(one.right, one.eaten, strict=True)]
            for share, reported in zip(shares, step.metrics["right_choice"][rows].tolist(), strict=True):
                assert np.isnan(reported) if share is None else reported == pytest.approx(share)
            one.begin()
            one.first = RED if int(moments(env)[number]) == 0 else BLUE
        assert np.array_equal(one.positions, env.positions(number))
        for agent in range(agents):
            assert step.obs[number * agents + agent].tolist() == one.observation(agent)


@pytest.mark.parametrize("level", LEVELS)
def test_every_step_equals_a_slow_simulation_of_the_rules(level: str) -> None:
    env = make(**LEVELS[level])
    obs = env.reset(11)
    slow = [SlowMap(env, number) for number in range(3)]
    assert obs.tolist() == [one.observation(agent) for one in slow for agent in range(env.agents_per_env)]
    for actions in random_actions(env, 120):
        step = env.step(actions)
        assert not bool(step.truncated.any())
        check_step(env, slow, step, actions)


def test_a_berry_that_several_agents_reach_goes_to_each_of_them_as_often() -> None:
    env = make(500, agents=3, berries=2, width=5, height=5, window=3, evaluation=True)
    env.reset(3)
    state, eaten = env.state(), torch.zeros(3)
    state["cell"][:] = state["world"][:, :1]  # all stand on a berry
    for _ in range(20):
        env.load_state(state)
        reward = env.step(torch.zeros(1500, dtype=torch.int64)).reward.view(500, 3)
        assert bool((reward.abs().sum(1) == 1).all())
        eaten += reward.abs().sum(0)
        state["random"] = env.state()["random"]
    assert float((eaten / eaten.sum() - 1 / 3).abs().max()) < 0.02


# Looking ------------------------------------------------------------------------------------------------
def test_it_keeps_the_contract_of_an_environment() -> None:
    for level, steps in (("default", 200), ("swap", 60)):
        findings = check_env(partial(make, **LEVELS[level]), steps=steps)
        assert [f for f in findings if f.level == "error"] == []
    env = make(**LEVELS["swap"])
    assert env.obs_space.shape == (104,)
    assert (env.truncates, env.capturable, env.agents_per_env, env.num_rows) == (False, True, 4, 12)


def test_the_cue_is_seen_at_first_and_then_no_more() -> None:
    env = make(20, evaluation=True, cue_length=3)
    cues = [env.reset(0)[:, -2:]] + [env.step(torch.zeros(80, dtype=torch.int64)).obs[:, -2:] for _ in range(5)]
    assert [int(cue.sum()) for cue in cues] == [80, 80, 80, 0, 0, 0]
    assert bool((cues[0].view(20, 4, 2) == cues[0].view(20, 4, 2)[:, :1]).all())  # all agents of a map are told


def test_in_training_the_first_episodes_end_at_different_steps_and_in_evaluation_together() -> None:
    for evaluation in (False, True):
        env = make(64, evaluation=evaluation)
        env.reset(1)
        ends = torch.stack([env.step(actions).done.view(64, 4) for actions in random_actions(env, 96)])
        assert bool((ends == ends[:, :, :1]).all())  # the agents of a map end together
        assert ends[:, :, 0].sum(0).tolist() == [3] * 64
        first_ends = len(set(ends[:, :, 0].int().argmax(0).tolist()))
        assert first_ends == 1 if evaluation else first_ends > 20


def test_frames() -> None:
    env = make(2, width=11, map="rooms", agents=2, berries=4, cue_length=2)
    env.reset(0)
    shown = env.frame(3)
    assert shown.shape == (10 * forage.CELL, 11 * forage.CELL, 3)
    assert shown.dtype == np.uint8
    assert not np.array_equal(shown, env.frame(0))


# Maps ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["open", "pillars", "rooms"])
def test_every_free_cell_can_be_reached(kind: Any) -> None:
    for height in range(5, 15):
        for width in range(5, 15):
            walls = wall_map(ForageConfig(width=width, height=height, map=kind))
            assert walls[[0, -1]].all()
            assert walls[:, [0, -1]].all()
            free = {tuple(cell) for cell in np.argwhere(~walls).tolist()}
            reached, queue = {(1, 1)}, deque([(1, 1)])
            while queue:
                row, column = queue.popleft()
                near = {(row + y, column + x) for y, x in MOVES} & free - reached
                reached |= near
                queue.extend(near)
            assert reached == free
            assert (kind == "open") == bool(not walls[1:-1, 1:-1].any())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": 4}, "--env.window is 4; it must be odd"),
        ({"window": -1}, "--env.window is -1"),
        ({"agents": 0}, "--env.agents is 0; it must be at least 1."),
        ({"width": 2}, "--env.width is 2; it must be at least 3."),
        ({"height": 4, "map": "rooms"}, "--env.height is 4; it must be at least 5."),
        ({"berries": 0}, "--env.berries is 0"),
        ({"berries": 23}, "--env.berries is 23 .* 49 free cells"),
        ({"episode_length": 1, "cue_length": 1, "swap": True}, "--env.episode-length is 1; it must be at least 2"),
        ({"cue_length": 33}, "--env.cue-length is 33; an episode has 32 steps"),
        ({"map": "maze"}, "--env.map is 'maze'"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**settings)


def test_a_map_may_be_full() -> None:
    env = make(width=4, height=5, berries=2, agents=2, window=9)
    env.reset(0)
    slow = [SlowMap(env, number) for number in range(3)]
    for actions in random_actions(env, 100):
        check_step(env, slow, env.step(actions), actions)


# Randomness ---------------------------------------------------------------------------------------------
def assert_uniform(values: Tensor, kinds: int) -> None:
    """A chi-squared test that a fair source fails once in 20,000 times."""
    counts = torch.bincount(values.reshape(-1), minlength=kinds).double()
    expected = values.numel() / kinds
    excess = float(((counts - expected) ** 2 / expected).sum()) - (kinds - 1)
    assert len(counts) == kinds
    assert abs(excess) < 4 * (2 * kinds) ** 0.5 + 4


def assert_uniform_pairs(values: Tensor) -> None:
    """[n, m] numbers below 16: neighbours, both ways, know nothing of each other."""
    for one, other in ((values[1:], values[:-1]), (values[:, 1:], values[:, :-1])):
        assert_uniform(16 * one + other, 256)


def test_hashed_numbers_look_random() -> None:
    numbers = make(1).hashed(12_345, 20_000).view(400, 50)
    assert len(numbers.unique()) == numbers.numel()
    for kinds in (2, 32, 33, 100):
        assert_uniform((numbers >> 8) % kinds, kinds)
    assert_uniform_pairs((numbers >> 59) % 16)
    assert_uniform(numbers.argsort(1).argmin(1), 50)


def test_cards_are_drawn_at_random() -> None:
    env = make(200)
    env.reset(8)
    card_of = {tuple(card): number for number, card in enumerate(env.deck.tolist())}
    assert len(card_of) == len(env.deck) == 8192  # no two are alike
    drawn = [[card_of[tuple(card)] for card in torch.cat(env.draw_cards(), 1).tolist()] for _ in range(100)]
    assert_uniform(torch.tensor(drawn) // 128, 64)
    assert_uniform(torch.tensor(drawn) % 33, 33)
    assert_uniform_pairs(torch.tensor(drawn) // 512)


def test_berries_agents_and_colours_are_anywhere() -> None:
    env = make(3000, agents=2)
    env.reset(5)
    inner = np.stack([env.grid(number)[1:-1, 1:-1].reshape(-1) for number in range(3000)])
    for kind in (RED, BLUE):
        share = (inner == kind).mean(0)  # [cells]: 8 of 49, give or take 0.0067
        assert np.abs(share - 8 / 49).max() < 0.03
    assert_uniform(torch.from_numpy(np.stack([env.positions(n) for n in range(3000)])).long() - 1, 7)
    colours = moments(env) % 2
    assert_uniform(colours, 2)


def test_berries_grow_again_anywhere() -> None:
    env = make(2000, evaluation=True, agents=1, berries=4, episode_length=60)
    env.reset(6)
    grown: list[Tensor] = []
    for actions in random_actions(env, 40):
        before = env.state()["world"][:, :8]  # cells of the berries
        env.step(actions)
        now = env.state()["world"][:, :8]
        grown.append(now[now != before])
    counts = torch.cat(grown).unique(return_counts=True)[1]
    share = counts / counts.sum()
    assert len(share) == 49
    assert 0.6 / 49 < float(share.min()) < float(share.max()) < 1.4 / 49


def test_the_same_seed_gives_the_same_world_and_another_seed_another() -> None:
    one, two = make(8), make(8)
    assert torch.equal(one.reset(9), two.reset(9))
    for actions in random_actions(one, 70):
        assert_same(one.step(actions), two.step(actions))
    assert torch.equal(one.reset(9), two.reset(9))  # whatever happened before
    assert not torch.equal(one.reset(9), two.reset(10))
    assert torch.equal(one.reset(2**63 - 1), two.reset(2**63 - 1))
    assert torch.equal(make(5).reset(4), make(8).reset(4)[:20])  # a map does not depend on how many there are


@pytest.mark.parametrize("level", LEVELS)
def test_a_saved_state_continues_exactly(level: str) -> None:
    one, two = make(5, **LEVELS[level]), make(5, **LEVELS[level])
    one.reset(12)
    two.reset(99)
    actions = random_actions(one, 80)
    for chosen in actions[:37]:
        one.step(chosen)
    two.load_state(one.state())
    assert np.array_equal(one.frame(0), two.frame(0))
    for chosen in actions[37:]:
        assert_same(one.step(chosen), two.step(chosen))


# On a GPU -----------------------------------------------------------------------------------------------
class Calls(TorchDispatchMode):
    """Names of the torch calls that do work."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("level", LEVELS)
def test_a_step_is_few_calls_that_wait_for_nothing(level: str) -> None:
    env = make(6, **LEVELS[level])
    env.reset(2)
    for actions in random_actions(env, 40):
        with Calls() as calls:
            env.step(actions)
        assert len(calls.names) <= (35 if env.config.swap else 32)
        assert not [name for name in calls.names if "nonzero" in name or "_local_scalar_dense" in name]


def test_the_state_stays_in_place() -> None:
    env = make(4)

    def addresses() -> dict[str, int]:
        return {name: value.data_ptr() for name, value in vars(env).items() if isinstance(value, Tensor)}

    before = addresses()
    env.reset(1)
    for actions in random_actions(env, 40):
        env.step(actions)
    env.load_state(env.state())
    assert addresses() == before


@pytest.mark.gpu
@pytest.mark.parametrize("level", LEVELS)
def test_a_gpu_and_a_cuda_graph_give_the_same_world_as_a_cpu(
    level: str, device: str, recordings: Recordings
) -> None:
    cpu, gpu = make(50, **LEVELS[level]), make(50, device=device, **LEVELS[level])
    actions = random_actions(cpu, 80)
    slot = torch.zeros_like(actions[0], device=device)
    last: list[Step] = []
    step = Graphed(lambda: last.__setitem__(slice(None), [gpu.step(slot)]), torch.device(device))
    gpu.reset(0)
    for _ in range(3):  # the third call is recorded
        step()
    assert recordings.count == (device == "cuda")
    assert torch.equal(cpu.reset(7), gpu.reset(7).cpu())
    for chosen in actions:
        slot.copy_(chosen)
        step()
        assert_same(cpu.step(chosen), last[0])
