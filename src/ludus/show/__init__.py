"""All that a user sees of a run: the terminal, metrics files, TensorBoard, W&B, the report, the viewer.

`metrics.jsonl` is the truth; everything else here is a view of it. Only this package writes to screens.
"""
