"""Batched MuJoCo: simulators on CPU threads and on a GPU, tasks made of terms, cameras."""
