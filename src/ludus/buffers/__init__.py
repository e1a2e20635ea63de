"""Where experience is kept."""
