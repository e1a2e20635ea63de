"""Bodies that imitate motion."""

import dataclasses

from ludus.algorithms.imitation.config import AdversaryConfig, AMPTrainConfig
from ludus.algorithms.ppo.config import PPOConfig, PPOTrainConfig
from ludus.config import EvalConfig, LoopConfig, convert
from ludus.envs.humanoid.config import HumanoidConfig
from ludus.policies.config import PolicyConfig
from ludus.presets.preset import Preset

_MIMIC = PPOTrainConfig(
    groups=2,
    env=HumanoidConfig(num_envs=128, clips="stroll"),
    policy=PolicyConfig(hidden=(320, 160), activation="elu", initial_std=0.24, learn_std=False),
    ppo=PPOConfig(
        horizon=32,
        minibatches=8,
        update_epochs=8,
        learning_rate=3e-4,
        learning_rate_final=3e-5,
        gamma=0.96,
        bound_coef=1.0,
        target_kl=0.05,
        kl_control="adapt",
        std_final=0.08,  # what is left of the errors at the end is mostly the noise of exploring
        std_closing=(0.0, 0.6),  # while it is large, little is followed; once it is small, steps are small, too
        max_grad_norm=1.0,
    ),
    loop=LoopConfig(total_steps=800_000),
    eval=EvalConfig(every=80_000, stochastic=False),
)

_WIDE = dataclasses.replace(_MIMIC.policy, hidden=(1024, 512))

# Many clips want to look farther ahead: flips and jumps begin alike. And they want one layer more: without it they
# are followed after half as many steps again. Half of the starts stay even: with fewer, what is followed, but not
# closely, is hardly practised for as long as one hard clip fails. And what is followed closely is to stay so: with
# one limit for all, errors of a foot or a hand remain. Flips and rolls are found out while exploration is large.
_LARGE = dataclasses.replace(
    _MIMIC,
    device="cuda",
    precision="bfloat16",  # about a quarter faster than tf32
    groups=1,
    env=HumanoidConfig(num_envs=16_384, future=(1, 5, 15), strict_termination=0.3, resample_floor=0.5),
    policy=dataclasses.replace(_WIDE, hidden=(1024, 1024, 512)),
    ppo=dataclasses.replace(
        _MIMIC.ppo,
        horizon=16,
        minibatches=8,
        update_epochs=5,
        learning_rate_final=1e-5,
        gamma=0.97,
        std_final=0.05,
        std_closing=(0.5, 1.0),
        average=1_200,  # gradient steps: of 30 iterations
    ),
    loop=LoopConfig(total_steps=380_000_000, iterations=40),
    eval=EvalConfig(every=30_000_000, stochastic=False),
)

# Hundreds of clips, and such as it has not seen: no phase, which names a clip, but a longer look ahead; and every
# clip also mirrored, slower and faster, from beside it.
_GENERAL = dataclasses.replace(
    _LARGE,
    precision="tf32",
    env=HumanoidConfig(
        num_envs=8_192,
        future=(1, 5, 15, 30),
        observations={"phase": None},
        mirror=True,
        playback=(0.8, 1.25),
        start_noise=0.5,
        resample_floor=0.5,
        resample_spread=0.05,
    ),
    policy=_WIDE,
    ppo=dataclasses.replace(_LARGE.ppo, std_final=0.08),
    loop=LoopConfig(total_steps=300_000_000, iterations=40),
    eval=EvalConfig(every=25_000_000, stochastic=False),
)

# Robots act about 50 times a second, so that a second is more steps; and their motors are soft: what they find out
# takes large exploration for long.
_ROBOT = dataclasses.replace(
    _MIMIC,
    env=HumanoidConfig(num_envs=128, clips="stroll", actions="feedforward", termination=0.3),
    policy=dataclasses.replace(_MIMIC.policy, initial_std=0.34),
    ppo=dataclasses.replace(_MIMIC.ppo, gamma=0.976, std_final=0.12, std_closing=(0.5, 1.0)),
    loop=LoopConfig(total_steps=1_500_000),
    eval=EvalConfig(every=200_000, stochastic=False),
)
_ROBOT_LARGE = dataclasses.replace(
    _LARGE,
    precision="tf32",
    env=HumanoidConfig(
        num_envs=8_192,
        clips="stroll",
        actions="feedforward",
        future=(1, 5, 15),
        termination=0.3,
        max_steps=500,
        resample_floor=0.5,
    ),
    policy=_WIDE,
    ppo=dataclasses.replace(_LARGE.ppo, gamma=0.98, std_final=0.1, average=0),
    loop=LoopConfig(total_steps=30_000_000, iterations=20),
    eval=EvalConfig(every=5_000_000, stochastic=False),
)

# No pose is followed: the discriminator alone says what walking looks like, the task how fast.
_AMP = convert(
    _MIMIC,
    AMPTrainConfig,
    env=HumanoidConfig(
        num_envs=128,
        clips="stroll",
        goal="speed",
        speed=(1.0, 1.4),
        actions="absolute",
        action_scale=1.0,
        discriminate="motion",
    ),
    policy=dataclasses.replace(_MIMIC.policy, initial_std=0.12),
    ppo=dataclasses.replace(_MIMIC.ppo, gamma=0.97, std_final=0.06, std_closing=(0.5, 1.0), target_kl=0.025),
    adversary=AdversaryConfig(batches=8),
    loop=LoopConfig(total_steps=3_000_000),
    eval=EvalConfig(every=300_000, episodes=64, stochastic=False),
)

PRESETS = [
    Preset("mimic", "Any robot imitates clips of motion (PPO): --body g1 --clip walk.csv.", _ROBOT),
    Preset("mimic-large", "The same with 8,192 robots on a GPU.", _ROBOT_LARGE),
    Preset("humanoid-mimic", "A humanoid imitates clips of motion, pose by pose (PPO).", _MIMIC),
    Preset("humanoid-mimic-large", "The same with 16,384 humanoids on a GPU, for many clips.", _LARGE),
    Preset("humanoid-mimic-general", "The same for hundreds of clips, and for clips it has not seen.", _GENERAL),
    Preset("humanoid-amp", "A humanoid learns to move like a clip, at a given speed (PPO and AMP).", _AMP),
]
