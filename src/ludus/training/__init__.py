"""The loop and what belongs to a run: collection, evaluation, checkpoints, callbacks."""
