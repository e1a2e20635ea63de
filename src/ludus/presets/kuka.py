"""The main job: a KUKA iiwa picks and places a cube."""

import dataclasses

from ludus.algorithms.distill.config import DistillConfig, DistillTrainConfig
from ludus.algorithms.ppo.config import PPOConfig, PPOTrainConfig
from ludus.algorithms.replay.config import ReplayConfig, SACConfig, SACTrainConfig
from ludus.config import CheckpointConfig, EvalConfig, LoopConfig, convert
from ludus.envs.kuka.config import KukaConfig
from ludus.policies.config import PolicyConfig
from ludus.presets.preset import Preset

_PICK_PLACE = PPOTrainConfig(
    groups=2,
    env=KukaConfig(num_envs=256),
    policy=PolicyConfig(hidden=(128, 128), initial_std=0.7),
    ppo=PPOConfig(
        horizon=16,
        minibatches=16,
        update_epochs=8,
        learning_rate=6e-4,
        learning_rate_final=6e-5,
        gamma=0.97,
        entropy_coef=0.01,
        std_final=0.15,
    ),
    loop=LoopConfig(total_steps=500_000),
    eval=EvalConfig(every=50_000, episodes=100, final_episodes=200),
)

# A recipe that is often described for this job, with Stable-Baselines3: its numbers, not ours, on fixed places.
# One arm, 2,048 steps at a time, minibatches of 64, and nothing that helps: no assisted starts, no schedule.
_SB3 = PPOTrainConfig(
    env=KukaConfig(num_envs=1, threads=1, fixed=True, assist=0.0, assist_final=0.0, max_steps=200),
    policy=PolicyConfig(hidden=(64, 64), activation="tanh"),
    ppo=PPOConfig(
        horizon=2_048,
        minibatches=32,
        update_epochs=10,
        learning_rate=3e-4,
        learning_rate_final=3e-4,
        entropy_coef=0.01,
        entropy_coef_final=0.01,
    ),
    loop=LoopConfig(total_steps=200_000),
    eval=EvalConfig(every=5_000, episodes=10, stochastic=False, final_episodes=100),
    checkpoint=CheckpointConfig(every=10_000, keep="all"),
)

# What the cube weighs, how it slides and how late the arm obeys differs from episode to episode. The policy sees
# what it asked for and may not have got yet.
_RANDOMIZATION = {
    "cube_mass": {"kind": "body_mass", "bodies": ["cube"], "scale": [0.5, 3.0]},
    "friction": {"kind": "friction", "scale": [0.5, 1.5]},
    "latency": {"kind": "latency", "steps": [0, 2]},  # of 50 ms
}
_RANDOMIZED = dataclasses.replace(
    _PICK_PLACE,
    env=KukaConfig(num_envs=256, randomization=_RANDOMIZATION, observations={"last_actions": 1.0}),
    loop=LoopConfig(total_steps=1_200_000),
    eval=EvalConfig(every=80_000, episodes=100, final_episodes=200),
)

# The places of cube and pad are always the same until that is learned, then anywhere.
_CURRICULUM = dataclasses.replace(
    _PICK_PLACE,
    eval=EvalConfig(every=25_000, episodes=100),
    stages=({"until": {"success": 0.9, "steps": 150_000}, "set": {"env.fixed": True}},),
)

# Fewer iterations, each with eight times as many arms.
_LARGE = dataclasses.replace(
    _PICK_PLACE,
    device="cuda",
    precision="tf32",
    groups=1,
    env=KukaConfig(num_envs=2_048),
    loop=LoopConfig(total_steps=1_500_000),
    eval=EvalConfig(every=250_000, episodes=100, final_episodes=200),
)

# The actor sees two images and what an arm feels; the critic, which only learning needs, sees the state.
_PIXELS = dataclasses.replace(
    _LARGE,
    env=KukaConfig(num_envs=2_048, image_size=64),
    policy=PolicyConfig(
        hidden=(128,),
        activation="elu",
        image_features=128,
        actor_parts=("agentview", "eye_in_hand", "proprioception"),
        critic_parts=("state",),
        initial_std=0.7,
    ),
    ppo=dataclasses.replace(_PICK_PLACE.ppo, update_epochs=4, learning_rate=5e-4, learning_rate_final=5e-5),
    loop=LoopConfig(total_steps=3_000_000),
    eval=EvalConfig(every=1_000_000, episodes=200, stochastic=False),
)

# On two cores a teacher that knows the state makes up for what a GPU's many arms would find out.
_DISTILL = convert(
    _PIXELS,
    DistillTrainConfig,
    device="cpu",
    precision="float32",
    torch_threads=2,
    env=KukaConfig(num_envs=64, image_size=64),
    distill=DistillConfig(teacher_part="state", horizon=16, minibatches=8, update_epochs=2),
    loop=LoopConfig(total_steps=100_000),
    eval=EvalConfig(every=50_000, episodes=100, stochastic=False),
)

# No reward for progress: goals that were reached by chance teach how to reach them.
_GOALS = SACTrainConfig(
    env=KukaConfig(num_envs=64, goals=True),
    policy=PolicyConfig(hidden=(256, 256), activation="relu"),
    replay=ReplayConfig(
        warmup=10_000, steps=512, train_batches=64, batch_size=256, gamma=0.97, learning_rate=1e-3, polyak=0.98
    ),
    sac=SACConfig(alpha=0.1),
    loop=LoopConfig(total_steps=400_000, iterations=20),
    eval=EvalConfig(every=25_000, episodes=100, stochastic=False, final_episodes=200),
)

PRESETS = [
    Preset(
        "kuka-pick-place",
        "A KUKA iiwa picks a cube up from anywhere on the table and places it on a pad (PPO).",
        _PICK_PLACE,
    ),
    Preset(
        "kuka-sb3",
        "The same from fixed places, by the recipe usual with Stable-Baselines3: 200,000 steps of one arm (PPO).",
        _SB3,
    ),
    Preset(
        "kuka-randomized",
        "The same with a cube of any weight, any friction, and an arm that obeys up to 100 ms late.",
        _RANDOMIZED,
    ),
    Preset(
        "kuka-curriculum",
        "The same in two stages: the cube and the pad first at fixed places, then anywhere.",
        _CURRICULUM,
    ),
    Preset(
        "kuka-goals",
        "The same as goals: every step costs 1 until the cube lies on the pad (SAC and HER).",
        _GOALS,
    ),
    Preset("kuka-pick-place-large", "The same with 2,048 arms on a GPU.", _LARGE),
    Preset("kuka-pixels", "The same seen through two cameras, with 2,048 arms on a GPU.", _PIXELS),
    Preset(
        "kuka-pixels-distill",
        "The same on two cores: a run that sees the state (--distill.teacher RUN) teaches one that sees images.",
        _DISTILL,
    ),
]
