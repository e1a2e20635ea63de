"""The verbs of the command `ludus`, one file a family.

A verb is a function of the arguments that follow it. It is found in its file's `VERBS`, reads its arguments with
tyro, and prints. What it does lives elsewhere; what is slow to import is imported when the verb runs.
"""
