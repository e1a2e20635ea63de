"""What each metric means, by its name: for the reference, which is written from here.

`NAME` stands for any name. `eval/…` holds for `eval_stochastic/…` and `final/…` as well.
"""

import re
from typing import NamedTuple


class Meaning(NamedTuple):
    what: str
    usual: str = ""  # of a training that goes well


MEANINGS: dict[str, Meaning] = {
    # Episodes that ended in training since the last row.
    "rollout/episodes": Meaning("episodes that ended; every agent's is one"),
    "rollout/ep_rew_mean": Meaning("mean return, raw rewards", "rises"),
    "rollout/ep_len_mean": Meaning("mean length in steps"),
    "rollout/success_rate": Meaning("share of successes, where the task defines success", "rises"),
    "rollout/diverged": Meaning("share that ended because the simulation diverged", "0"),
    "rollout/completion": Meaning("humanoid: share of an episode's frames before it failed", "rises"),
    "rollout/mpjpe": Meaning("humanoid: mm, mean distance of the bodies to their references", "falls"),
    "rollout/speed_error": Meaning("humanoid with goal speed: m/s, distance from the speed asked for", "falls"),
    "rollout/style_reward": Meaning("with a discriminator: its reward per step, before its weight"),
    "rollout/task_reward": Meaning("with a discriminator: the task's reward per step, before its weight"),
    "rollout/contact_overflow": Meaning("MuJoCo Warp: simulations without room for all contacts", "0"),
    "rollout/constraint_overflow": Meaning("MuJoCo Warp: simulations without room for all constraints", "0"),
    "rollout/grasped": Meaning("KUKA: share of episodes at whose end both fingertips touched the cube"),
    "rollout/fallen": Meaning("KUKA: share of episodes in which the cube left the table"),
    "rollout/reward/NAME": Meaning("MuJoCo tasks: weighted sum of a reward term over the episode"),
    "rollout/ended/NAME": Meaning("MuJoCo tasks: share of episodes that a termination ended"),
    "rollout/x_position": Meaning("runners: distance run, in metres", "rises"),
    "rollout/right_choice": Meaning("forage: share of the paying colour among the berries eaten", "rises"),
    "rollout/berries": Meaning("forage: berries eaten"),
    "rollout/worker_restarts": Meaning("worker processes restarted so far", "0"),
    "rollout/NAME": Meaning("mean of the task's own metric at the end of episodes"),
    "env/NAME": Meaning("mean of a number in the environment's `info`, over an episode and then over episodes"),
    "custom/NAME": Meaning("what a callback logged: the mean over the cycle"),
    # Evaluations.
    "eval/success_rate": Meaning("share of successes on held-out starts", "rises"),
    "eval/success_low": Meaning("lower end of its 95 % Wilson interval"),
    "eval/success_high": Meaning("upper end of its 95 % Wilson interval"),
    "eval/mean_reward": Meaning("mean return", "rises"),
    "eval/std_reward": Meaning("standard deviation of the return over episodes"),
    "eval/mean_ep_length": Meaning("mean length in steps"),
    "eval/episodes": Meaning("episodes played"),
    "eval/cut_episodes": Meaning("episodes that `--eval.max-steps` cut; they count as they are", "0"),
    "eval/success_strict": Meaning("humanoid: share of episodes in which no body was ever 0.25 m off"),
    "eval/completion": Meaning("humanoid: share of a clip's frames before it failed, mean over clips", "rises"),
    "eval/test_NAME": Meaning("humanoid: NAME, of clips that were kept out of the training (--env.test-clips)"),
    "eval/mpjpe": Meaning("humanoid: mm, mean distance of the bodies to their references, in the world", "falls"),
    "eval/mpjpe_local": Meaning("the same with both pelvises in one place", "falls"),
    "eval/mpjpe_aligned": Meaning("the same after the best rotation, scale and shift (Procrustes)", "falls"),
    "eval/velocity_error": Meaning("humanoid: m/s, mean length of the difference of body velocities", "falls"),
    "eval/acceleration_error": Meaning("humanoid: m/s², the same of accelerations: trembling shows here", "falls"),
    "eval/pose_error": Meaning("humanoid, AMP: mm to the most similar pose of the clips", "falls"),
    "eval/env/NAME": Meaning("as `env/NAME`, of evaluation episodes"),
    "eval/NAME": Meaning("mean of the task's own metric at the end of episodes"),
    # The update. PPO: means over the minibatches of the last pass of the iteration that ends the cycle.
    "train/policy_gradient_loss": Meaning("PPO: the clipped surrogate; negative is gain", "near 0"),
    "train/value_loss": Meaning("PPO: squared error of the critic, in units of normalised return", "falls"),
    "train/entropy_loss": Meaning("PPO: minus the entropy of the policy, summed over action dimensions", "rises"),
    "train/loss": Meaning("PPO: the three together, by their weights. DQN: its Huber loss, in units of reward"),
    "train/approx_kl": Meaning("PPO: mean of ρ − 1 − log ρ: how far the policy moved", "0.005 to 0.03"),
    "train/clip_fraction": Meaning("PPO: share of steps whose ratio left 1 ± clip", "0.05 to 0.3"),
    "train/grad_norm": Meaning("length of the gradient before it is shortened", "steady"),
    "train/explained_variance": Meaning("1: the critic predicts returns perfectly; 0: no better than a constant",
                                        "rises towards 1"),
    "train/learning_rate": Meaning("as scheduled"),
    "train/ent_coef": Meaning("weight of the entropy: PPO's as scheduled, SAC's as learned"),
    "train/std": Meaning("mean spread of a continuous policy, where 1 is half of the action range", "falls"),
    "train/skipped_updates": Meaning("gradients that were not finite and moved nothing", "0"),
    "train/imitation_loss": Meaning("distillation: −log π of the teacher's action", "falls"),
    "train/critic_loss": Meaning("SAC, TD3: mean squared error of the critics, in units of reward. FlashSAC: "
                                 "cross-entropy of the bins", "falls, then rises with the values"),
    "train/edge_bins": Meaning("FlashSAC: how likely a return lies in the critics' first or last bin", "near 0"),
    "train/reward_scale": Meaning("FlashSAC: what rewards are divided by"),
    "train/actor_loss": Meaning("SAC: α log π − min Q; TD3: −min Q", "falls"),
    "train/q_mean": Meaning("mean value of the policy's actions (DQN: of the recorded ones)",
                            "rises towards the discounted return (FlashSAC: scaled); running away is divergence"),
    "train/entropy": Meaning("SAC, FlashSAC: entropy of the policy", "comes to its target"),
    "train/r_loss": Meaning("loss of a learned reward, mean of all batches; the unbiased one may be negative",
                            "falls"),
    "train/NAME": Meaning("what an algorithm of your own tells"),
    # A discriminator.
    "adversary/loss": Meaning("with all penalties", "0.7 to 0.9 at first"),
    "adversary/accuracy_demo": Meaning("share of demonstrated windows with a logit above 0", "0.5 to 1"),
    "adversary/accuracy_policy": Meaning("share of the policy's windows with a logit below 0", "0.5 to 1"),
    "adversary/gradient_penalty": Meaning("mean squared slope, before its weight", "small"),
    "adversary/logit_demo": Meaning("mean logit of demonstrated windows", "separates, then converges"),
    "adversary/logit_policy": Meaning("mean logit of the policy's windows", "separates, then converges"),
    "adversary/style_reward": Meaning("mean reward of the windows, before its weight",
                                      "1.39 where they cannot be told apart"),
    # A learned reward.
    "reward/AUC": Meaning("how often a held-out success scores higher than a failure, by its mean", "rises to 1"),
    "reward/R2": Meaning("part of the variance of held-out returns that the sum of the reward explains", "rises"),
    "reward/correlation": Meaning("with the true reward of a step: of held-out successes, or of the replay buffer",
                                  "rises"),
    "reward/correlation_within": Meaning("the same inside each successful episode, then averaged", "rises"),
    "reward/NAME": Meaning("another measure of held-out episodes"),
    # The names of public versions of RRD, in runs with a learned reward.
    "Epoch": Meaning("as `loop/epoch`"),
    "Cycle": Meaning("as `loop/cycle`"),
    "Episodes": Meaning("episodes stored since the start"),
    "Timesteps": Meaning("environment steps, or stored steps where nothing is collected"),
    "TimeCost(sec)/train": Meaning("seconds since the last row, without evaluation"),
    "TimeCost(sec)/test": Meaning("seconds of the evaluation"),
    "R_loss": Meaning("as `train/r_loss`"),
    "Q_loss": Meaning("as `train/critic_loss` (DQN: `train/loss`)"),
    "Pi_loss": Meaning("as `train/actor_loss`"),
    # The loop and the machine.
    "loop/epoch": Meaning("epochs begun"),
    "loop/cycle": Meaning("the cycle within its epoch"),
    "loop/stage": Meaning("the stage of a curriculum"),
    "loop/batches": Meaning("gradient steps so far"),
    "time/iterations": Meaning("iterations since the start"),
    "time/fps": Meaning("steps per second since the last row, saving included, evaluation left out"),
    "time/time_elapsed": Meaning("seconds of training, over all resumes"),
    "time/eta_s": Meaning("seconds left at that speed"),
    "time/simulate_share": Meaning("share of the time spent waiting for environments"),
    "time/act_share": Meaning("share spent choosing actions; on a GPU, simulating there is part of it"),
    "time/learn_share": Meaning("share spent updating"),
    "system/cpu_percent": Meaning("share of the usable cores that the run took since the last row"),
    "system/memory_mb": Meaning("resident memory of the process and its children"),
    "system/gpu_percent": Meaning("how busy the GPU was lately, with whatever runs there"),
    "system/gpu_memory_allocated_mb": Meaning("the most that tensors took on the GPU so far"),
    "system/gpu_memory_reserved_mb": Meaning("the most that torch reserved for them"),
}  # fmt: skip


def meaning(metric: str) -> Meaning | None:
    """Of a metric of a run; None where nothing is known of it."""
    name = re.sub(r"^(?:eval_stochastic|final)/", "eval/", metric)
    known = (pattern for pattern in MEANINGS if re.fullmatch(re.escape(pattern).replace("NAME", ".+"), name))
    best = max(known, key=lambda pattern: (pattern == name, len(pattern)), default=None)
    return MEANINGS[best] if best is not None else None
