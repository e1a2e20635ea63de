"""Forage: agents gather berries on a small map, and must remember which of the two colours pays.

The whole group is a handful of tensors, stepped by few calls that are the same on a CPU and on a GPU and never
wait for a value. Three ideas keep the calls few:

- The free cells of a map are listed in random order. The first places of that list ("slots") are the red berries,
  the next ones the blue berries, the rest have none. A berry that is eaten grows again by swapping its slot with
  a random one of the rest: the new cell is always free, and the number of berries never changes.
- `_seen` holds, for every cell, its slot and the number of agents there as one integer. What an agent sees is
  one read of it around the agent and one look-up in a table.
- Whatever a step needs at random is written on a card: a whole new map, where a berry grows again, who eats first.
  A seed makes a deck of thousands of cards by hashing; every environment draws one each step.
"""

from collections.abc import Iterable
from dataclasses import replace

import gymnasium as gym
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from ludus.envs.config import ForageConfig
from ludus.envs.vec import State, Step, VecEnv
from ludus.errors import ConfigError
from ludus.ranges import check_fields

NUM_ACTIONS = 5  # stay, north, east, south, west
FREE, WALL, RED, BLUE = range(4)  # what is in a cell
WALL_CHANNEL, RED_CHANNEL, BLUE_CHANNEL, OTHER_CHANNEL = range(4)  # of what is seen of a cell

# Of splitmix64, as signed 64-bit integers.
GOLDEN, MIX_1, MIX_2 = (n - 2**64 for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
# A number times this, modulo 2⁶⁴, is the next random number, of which high bits are used (Steele & Vigna 2021).
MULTIPLIER = 0xF1357AEA2E62A9C5 - 2**64
MIN_CARD_BITS, MAX_CARD_BITS, DECK_CELLS = 10, 13, 2**19  # fewer cards for maps of many cells


def scramble(numbers: Tensor) -> Tensor:
    """int64 numbers that look random, from any that differ: splitmix64, except that shifts keep the sign."""
    numbers = (numbers ^ (numbers >> 30)) * MIX_1
    numbers = (numbers ^ (numbers >> 27)) * MIX_2
    return numbers ^ (numbers >> 31)


class Forage(VecEnv):
    """Row = environment × agents + agent. `docs/forage.md` says what is seen; actions: stay, N, E, S, W."""

    name = "forage"
    truncates = False
    frame_rate = 5  # pictures a second in a replay, slow enough to follow
    capturable = True

    def __init__(
        self, config: ForageConfig, num_envs: int, device: torch.device | str = "cpu", evaluation: bool = False
    ) -> None:
        _validate(config, num_envs)
        self.config, self.device = config, torch.device(device)
        self.num_rows, self.agents_per_env = num_envs * config.agents, config.agents
        obs_size = 4 * config.window**2 + (4 if config.swap else 2)
        self.obs_space = gym.spaces.Box(0, 1, (obs_size,), np.uint8)
        self.action_space = gym.spaces.Discrete(NUM_ACTIONS)
        self._spread_ends = not evaluation
        self._num_envs, self._num_berries = num_envs, 2 * config.berries
        self._pad = max(config.window // 2 - 1, 0)  # a window reaches beyond the border: there is more wall
        self._walls = np.pad(wall_map(config), self._pad, constant_values=True)
        self._num_free = int((~self._walls).sum())
        self._num_slots = self._num_free + 1  # the last one is no cell of the map, and looks like wall
        self._per_agent = 1 << self._num_slots.bit_length()  # added to a slot for each agent in its cell
        self._make_map_tables()
        self._make_rule_tables()
        self._make_state()

    def _constant(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device)

    def _make_map_tables(self) -> None:
        walls, line, cells = self._walls, self._walls.shape[1], np.arange(self._walls.size)[:, None]
        self._free_cells = self._constant(np.flatnonzero(~walls))
        targets = np.clip(cells + np.array([0, -line, 1, line, -1]), 0, walls.size - 1)
        self._next_cell = self._constant(np.where(walls.flat[targets], cells, targets))  # [cell, action]
        side = np.arange(self.config.window) - self.config.window // 2
        window = (side[:, None] * line + side).reshape(-1)
        self._window = self._constant(window)  # from the own cell to those that are seen
        self._not_self = self._constant(np.where(window == 0, -self._per_agent, 0))  # nobody sees itself
        self._slot_numbers = self._constant(np.arange(self._num_slots)).expand(self._num_envs, -1)
        self._one_agent = torch.full_like(self._slot_numbers[:, : self.agents_per_env], self._per_agent)

    def _make_rule_tables(self) -> None:
        kinds = self._kinds()
        self._channels = self._constant(_channel_table(kinds, self._per_agent, self.agents_per_env))
        self._cue = self._constant(_cue_table(self.config))
        self._worth = self._constant(_worth_table(self.config, kinds))
        self._never = torch.zeros(self.num_rows, dtype=torch.bool, device=self.device)
        self._zero = torch.zeros((), device=self.device)

    def _kinds(self) -> np.ndarray:
        """[slots] what is in the cell of each slot."""
        counts = [self.config.berries, self.config.berries, self._num_free - self._num_berries, 1]
        return np.repeat([RED, BLUE, FREE, WALL], counts)

    # State: allocated once and changed in place, so that a CUDA graph finds it again ----------------
    def _make_state(self) -> None:
        def integers(rows: int, columns: int, value: int = 0) -> Tensor:
            return torch.full((rows, columns), value, dtype=torch.int64, device=self.device)

        envs, cells, agents = self._num_envs, self._walls.size, self.agents_per_env
        self._world = integers(envs, self._num_slots + agents)
        self._slots = self._world[:, : self._num_slots]  # the cell of each slot
        self._moment = self._world[:, self._num_slots :]  # [envs, agents] 2 × steps done + colour that pays first
        # The slot of each cell, plus `_per_agent` for each agent there; one more cell, for the last slot.
        self._seen = integers(envs, cells + 1, self._num_slots - 1)
        self._cell = integers(envs, agents)  # where each agent stands
        self._random = integers(envs, 1)  # odd numbers; their high bits choose cards
        # Of the present episode: return, right berries, berries.
        self._tally = torch.zeros((3, envs, agents), device=self.device)
        self._seed: int | None = None  # that of the deck
        bits = min(max((DECK_CELLS // self._num_free).bit_length() - 1, MIN_CARD_BITS), MAX_CARD_BITS)
        self._card_shift = 64 - bits
        self._parts = [self._world.shape[1], agents, 3 * agents, agents**2]  # of a card: see `_prepare`
        self.deck = integers(2**bits, sum(self._parts))
        self._saved = {"world": self._world, "cell": self._cell, "random": self._random, "tally": self._tally}

    def state(self) -> State:
        return {name: value.clone() for name, value in self._saved.items()} | {"seed": self._seed}

    def load_state(self, state: State) -> None:
        for name, value in self._saved.items():
            value.copy_(state[name])
        self._prepare(state["seed"])
        self._draw_map()

    # Chance -----------------------------------------------------------------------------------------
    def _prepare(self, seed: int) -> None:
        """Bare walls, and a deck. On a card: a new world; starts of agents; where berries grow; who eats later."""
        self._seen.fill_(self._num_slots - 1)
        if seed == self._seed:
            return
        self._seed, cards, agents = seed, len(self.deck), self.agents_per_env
        numbers = self.hashed(2 * seed, cards * (self._num_free + agents)).view(cards, -1)
        cells = self._free_cells.take(numbers[:, :-agents].argsort(dim=1))
        outside = torch.full_like(cells[:, :1], self._walls.size)
        colour = (numbers[:, :1] % 2).expand(-1, agents)
        starts = cells[:, self._num_berries : self._num_berries + agents]
        spare = self._num_free - self._num_berries
        apart = torch.arange(agents, device=self.device) * (spare // agents)  # no two agents the same
        grow = self._num_berries + (torch.arange(cards, device=self.device)[:, None] + apart) % spare
        turns = numbers[:, -agents:]
        late = (turns[:, :, None] > turns[:, None, :]).flatten(1)  # [agent, than which other]
        # Twice where berries grow, with room for the slots they come from in between: see `_eat`.
        torch.cat([cells, outside, colour, starts, grow, grow, grow, late], dim=1, out=self.deck)

    def hashed(self, stream: int, count: int) -> Tensor:
        start = (stream * GOLDEN + 2**63) % 2**64 - 2**63
        return scramble(torch.arange(count, device=self.device) * MIX_2 + start)

    def draw_cards(self) -> tuple[Tensor, ...]:
        self._random.mul_(MULTIPLIER)
        cards = self.deck[(self._random >> self._card_shift).view(-1)]  # negative numbers count from the end
        return cards.split(self._parts, dim=1)

    # Episodes --------------------------------------------------------------------------------------
    def reset(self, seed: int) -> Tensor:
        self._prepare(seed)
        self._random.copy_(self.hashed(2 * seed + 1, self._num_envs)[:, None] | 1)
        world, starts, _, _ = self.draw_cards()
        self._world.copy_(world)
        self._cell.copy_(starts)
        if self._spread_ends:  # else every episode of the training would end in the same step
            self._moment += 2 * (scramble(self._random) % self.config.episode_length)
        self._tally.zero_()
        return self._observe(self._tally[0])

    # Stepping ----------------------------------------------------------------------------------------
    def begin_step(self, action: Tensor) -> None:
        move = torch.add(action.reshape(self._cell.shape), self._cell, alpha=NUM_ACTIONS)
        here = self._next_cell.take(move)
        new_world, starts, swap, late = self.draw_cards()
        deed = torch.add(self._eat(here, swap, late), self._moment, alpha=self._num_slots)
        gains = self._worth[:, deed]
        tally = self._tally + gains
        done = self._moment.add_(2) >= 2 * self.config.episode_length
        torch.where(done, self._zero, tally, out=self._tally)
        torch.where(done, starts, here, out=self._cell)
        torch.where(done[:, :1], new_world, self._world, out=self._world)
        self._outcome = gains[0], done, tally

    def _eat(self, here: Tensor, swap: Tensor, late: Tensor) -> Tensor:
        """Berries under agents are eaten and grow again: [envs, agents] their slots, the last slot for none."""
        # The slots of a berry and of a free cell change cells: `swap` has, for all agents, free, berry, free.
        agents = self.agents_per_env
        code, slot = self._seen.gather(1, here), swap[:, agents : 2 * agents]
        torch.bitwise_and(code, self._per_agent - 1, out=slot)
        same_cell = here[:, :, None] == here[:, None, :]
        idle = (same_cell & late.view(same_cell.shape)).any(2) | (slot >= self._num_berries)
        swap.unflatten(1, (3, agents)).masked_fill_(idle[:, None], self._num_slots - 1)  # the last with itself
        self._slots.scatter_(1, swap[:, : 2 * agents], self._slots.gather(1, swap[:, agents:]))
        return slot

    def end_step(self) -> Step:
        reward, done, tally = self._outcome
        obs = self._observe(reward.masked_fill(done, 0.0) if self.config.swap else reward)
        metrics = {"right_choice": (tally[1] / tally[2]).view(-1), "berries": tally[2].view(-1)}
        return Step(obs, reward.view(-1), done.view(-1), self._never, obs, metrics)

    # Seeing ------------------------------------------------------------------------------------------
    def _draw_map(self) -> None:
        self._seen.scatter_(1, self._slots, self._slot_numbers)  # wipes the agents away, too
        self._seen.scatter_add_(1, self._cell, self._one_agent)

    def _observe(self, felt: Tensor) -> Tensor:
        """[rows, obs] uint8; `felt` is the last reward of the present episode."""
        self._draw_map()
        cells = self._cell[:, :, None] + self._window
        codes = self._seen.gather(1, cells.flatten(1)).view(self.num_rows, -1).add_(self._not_self)
        window = self._channels.index_select(0, codes.view(-1)).view(torch.uint8)
        cue = self._cue[self._moment[:, 0]].view(torch.uint8)
        parts = [window.view(self.num_rows, -1), cue.view(-1, 2)]
        if self.config.swap:
            parts += [(felt > 0).view(torch.uint8).view(-1, 1), (felt < 0).view(torch.uint8).view(-1, 1)]
        return torch.cat(parts, dim=1)

    def grid(self, env: int) -> np.ndarray:
        """[height, width] what is in each cell of a map: FREE, WALL, RED or BLUE."""
        slots = (self._seen[env, :-1] % self._per_agent).cpu().numpy()
        inside = slice(self._pad, -self._pad or None)
        return self._kinds()[slots].reshape(self._walls.shape)[inside, inside]

    def positions(self, env: int) -> np.ndarray:
        """[agents, 2] row and column of each agent's cell."""
        cells = self._cell[env].cpu().numpy()
        return np.stack(np.divmod(cells, self._walls.shape[1]), axis=1) - self._pad

    def frame(self, row: int) -> np.ndarray:
        """[pixels, pixels, 3] uint8 picture of the row's map, with what the row sees outlined."""
        env, agent = divmod(row, self.agents_per_env)
        moment, score = int(self._moment[env, agent]), int(self._tally[0, env, agent])
        return _picture(self.config, self.grid(env), self.positions(env), agent, moment, score)


# Maps and tables --------------------------------------------------------------------------------------
def wall_map(config: ForageConfig) -> np.ndarray:
    """[height, width] bool. Every free cell can be reached from every other."""
    height, width = config.height, config.width
    walls = np.ones((height, width), dtype=bool)
    walls[1:-1, 1:-1] = False
    if config.map == "pillars":
        walls[2:-2:2, 2:-2:2] = True
    if config.map == "rooms":
        row, column = height // 2, width // 2
        walls[row], walls[:, column] = True, True
        walls[[row // 2, (row + height) // 2], column] = False
        walls[row, [column // 2, (column + width) // 2]] = False
    return walls


def _channel_table(kinds: np.ndarray, per_agent: int, agents: int) -> np.ndarray:
    """[slot + per_agent × agents there] what is seen of a cell: four bytes, read as one integer."""
    channels = np.zeros((agents + 1, per_agent, 4), dtype=np.uint8)
    for channel, kind in ((WALL_CHANNEL, WALL), (RED_CHANNEL, RED), (BLUE_CHANNEL, BLUE)):
        channels[:, : len(kinds), channel] = kinds == kind
    channels[1:, :, OTHER_CHANNEL] = 1
    return channels.view(np.int32).reshape(-1)


def _red_pays(config: ForageConfig) -> np.ndarray:
    """[moments] bool."""
    steps, colour = np.divmod(np.arange(2 * config.episode_length), 2)
    return (colour == 0) ^ (config.swap & (steps >= config.episode_length // 2))


def _cue_table(config: ForageConfig) -> np.ndarray:
    """[moments, agents] what is shown of the paying colour: two bytes, read as one integer."""
    red = _red_pays(config)
    cue = np.zeros((len(red), config.agents, 2), dtype=np.uint8)
    cue[..., 0], cue[..., 1] = red[:, None], ~red[:, None]
    cue[2 * config.cue_length :] = 0
    if config.relay:
        cue[:, 1:] = 0
    return cue.view(np.int16)[..., 0]


def _worth_table(config: ForageConfig, kinds: np.ndarray) -> np.ndarray:
    """[3, moments × slots] float32: reward, right berries, berries of eating at a slot at a moment."""
    right_kind = np.where(_red_pays(config), RED, BLUE)[:, None]
    berry = np.broadcast_to((kinds == RED) | (kinds == BLUE), (len(right_kind), len(kinds)))
    right = kinds == right_kind
    reward = np.where(right, 1, np.where(berry, -1, 0))
    return np.stack([reward, right, berry]).reshape(3, -1).astype(np.float32)


def _validate(config: ForageConfig, num_envs: int) -> None:
    """What goes together; the range of each number stands beside its field."""
    check_fields(replace(config, num_envs=num_envs), "env.")
    smallest = {"width": 5, "height": 5} if config.map != "open" else {}
    smallest |= {"episode_length": 2} if config.swap else {}
    for name, low in smallest.items():
        if getattr(config, name) < low:
            why = "with --env.swap" if name == "episode_length" else f"with --env.map {config.map}"
            flag = name.replace("_", "-")
            raise ConfigError(f"--env.{flag} is {getattr(config, name)}; it must be at least {low} {why}.")
    if config.window % 2 == 0:
        raise ConfigError(f"--env.window is {config.window}; it must be odd, so that the agent is in the middle.")
    if config.cue_length > config.episode_length:
        raise ConfigError(
            f"--env.cue-length is {config.cue_length}; an episode has {config.episode_length} steps."
        )
    free = int((~wall_map(config)).sum())
    if 2 * config.berries + config.agents > free:
        asked = f"--env.berries is {config.berries} (of each colour) and --env.agents is {config.agents}"
        raise ConfigError(f"{asked}; the map has only {free} free cells. Raise --env.width or --env.height.")


# Pictures -----------------------------------------------------------------------------------------------
CELL, SMOOTH = 28, 3  # pixels; drawn this much larger and shrunk, for round edges
FLOOR, LIT_FLOOR, STONE, INK = "#e4e0d6", "#faf8f3", "#5b6370", "#262b33"
BERRY, PALE_BERRY = {RED: "#d8342f", BLUE: "#2f6fd8"}, {RED: "#cfb0b2", BLUE: "#b0bdd0"}
COATS = ("#f2a71b", "#2a9d6f", "#8e5bc9", "#17a2b8", "#c2557a", "#7a8b2a")  # of the agents, in turn


def _picture(
    config: ForageConfig, grid: np.ndarray, positions: np.ndarray, shown: int, moment: int, score: int
) -> np.ndarray:
    """The map, below a bar in the paying colour that is pale once agents are no longer told."""
    unit, (height, width) = CELL * SMOOTH, grid.shape
    image = Image.new("RGB", (width * unit, (height + 1) * unit), FLOOR)
    draw = ImageDraw.Draw(image)

    def box(cell: Iterable[int], size: float) -> list[float]:
        """Of a square around a cell's middle."""
        row, column = cell
        return [m * unit + sign * size * unit / 2 for sign in (-1, 1) for m in (column + 0.5, row + 1.5)]

    coats = [COATS[agent % len(COATS)] for agent in range(len(positions))]
    draw.rectangle(box(positions[shown], config.window), fill=LIT_FLOOR)
    for cell in np.argwhere(grid == WALL):
        draw.rectangle(box(cell, 1.0), fill=STONE)
    for cell in np.argwhere((grid == RED) | (grid == BLUE)):
        draw.ellipse(box(cell, 0.5), fill=BERRY[grid[tuple(cell)]])
    for cell, coat in zip(positions, coats, strict=True):
        draw.rounded_rectangle(box(cell, 0.7), unit // 6, fill=coat)
    draw.rounded_rectangle(box(positions[shown], 0.8), unit // 6, coats[shown], INK, 2 * SMOOTH)  # on top
    draw.rounded_rectangle(box(positions[shown], config.window), unit // 6, None, coats[shown], 2 * SMOOTH)

    step, told = moment // 2, moment // 2 < config.cue_length
    colour = (BERRY if told else PALE_BERRY)[RED if _red_pays(config)[moment] else BLUE]
    draw.rectangle([0, 0, width * unit, unit], fill=colour)
    ink, font = "white" if told else INK, ImageFont.load_default(size=unit // 2)
    draw.text((unit / 3, unit / 2), f"step {step} of {config.episode_length}", ink, font, "lm")
    draw.text(((width - 1 / 3) * unit, unit / 2), f"{score:+d}" if score else "0", ink, font, "rm")
    return np.array(image.resize((width * CELL, (height + 1) * CELL), Image.Resampling.LANCZOS))
