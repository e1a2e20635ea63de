"""Train CartPole from Python and stop as soon as an evaluation says it is solved.

python examples/train_from_python.py
"""

import ludus


class StopWhenSolved(ludus.Callback):
    """CartPole-v1 counts as solved at a mean return of 475."""

    def on_evaluation(self, run, metrics):
        print(f"step {run.step:,}: mean return {metrics['eval/mean_reward']:.0f}")
        return metrics["eval/mean_reward"] < 475  # False ends the training, after saving


if __name__ == "__main__":
    folder = ludus.train(
        "gym:CartPole-v1",
        callbacks=[StopWhenSolved()],
        seed=1,
        eval={"every": 10_000},  # sections as dicts …
        overrides={"ppo.learning_rate": 1e-3},  # … or dotted names
    )
    print(f"python examples/act_with_a_policy.py {folder}   acts with what was learned")
