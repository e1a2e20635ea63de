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
    run = ludus.train(
        "gym:CartPole-v1",
        callbacks=[StopWhenSolved()],
        seed=1,
        learning_rate=1e-3,  # a setting that only one section has needs no section …
        eval={"every": 10_000},  # … others do
    )
    print(run.evaluate(episodes=100))
    print(f"python examples/act_with_a_policy.py {run}   acts with what was learned")
