"""Grid worlds of the mettagrid package, with one set of hyper-parameters for all."""

from ludus.algorithms.ppo.config import PPOConfig, PPOTrainConfig
from ludus.config import EvalConfig, LoopConfig
from ludus.envs.config import MettagridConfig
from ludus.envs.mettagrid import find_task
from ludus.policies.config import PolicyConfig
from ludus.presets.preset import Preset

_ROWS = 256  # agents in all worlds together
_PPO = PPOConfig(
    horizon=32,
    minibatches=8,
    update_epochs=4,
    learning_rate=1e-3,
    gamma=0.97,
    gae_lambda=0.92,
    entropy_coef=0.02,
    max_grad_norm=1.0,
)


def preset_for(name: str) -> Preset:
    """The job behind `mettagrid:name`."""
    task = find_task(name)  # an unknown name is refused here, before anything is built
    config = PPOTrainConfig(
        env=MettagridConfig(task=name, num_envs=_ROWS // task.agents),
        policy=PolicyConfig(hidden=(128, 128), activation="relu"),  # with tanh, assembly is hardly learned
        ppo=_PPO,
        loop=LoopConfig(total_steps=1_000_000),
        eval=EvalConfig(every=200_000, episodes=256),
    )
    return Preset(f"mettagrid:{name}", f"MettaGrid: {task.summary}.", config)
