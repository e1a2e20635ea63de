"""`ludus new`: a folder with a task of one's own that trains as it is."""
