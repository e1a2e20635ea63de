"""Updates of a policy from experience. They know nothing of environments, files or screens."""
