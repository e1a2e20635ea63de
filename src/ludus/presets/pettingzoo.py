"""Any PettingZoo parallel environment: one policy for all agents, with defaults that work on most."""

from ludus.algorithms.ppo.config import PPOConfig, PPOTrainConfig
from ludus.config import EvalConfig, LoopConfig
from ludus.envs.gym.config import PettingZooConfig
from ludus.envs.gym.finding import find_factory
from ludus.policies.config import PolicyConfig
from ludus.presets.preset import Preset

# Several agents that learn at once make the task of each move: smaller updates than for one alone, and a little
# entropy, so that no agent settles before the others have.
_PPO = PPOConfig(horizon=128, minibatches=8, update_epochs=5, learning_rate=3e-4, entropy_coef=0.01)


def preset_for(env_id: str) -> Preset:
    find_factory(env_id)  # an unknown one is refused here, before anything is built
    config = PPOTrainConfig(
        env=PettingZooConfig(id=env_id),
        policy=PolicyConfig(hidden=(64, 64)),
        ppo=_PPO,
        loop=LoopConfig(total_steps=1_000_000),
        eval=EvalConfig(every=50_000, episodes=20),
    )
    return Preset(f"pettingzoo:{env_id}", f"PettingZoo's {env_id}, one policy for all its agents.", config)
