"""A sweep: many trials of one training with other settings. The folders of their runs are the only database."""
