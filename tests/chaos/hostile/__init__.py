"""What a stranger might send: run folders, recorded data, clips."""
