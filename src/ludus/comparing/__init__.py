"""Runs held against each other: read, grouped by their settings, compared. They may be a stranger's."""
