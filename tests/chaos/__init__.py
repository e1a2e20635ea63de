"""The chaos suite: trainings are interrupted in every way, and files of strangers are as bad as can be.

    children.py       a `ludus` command as a forked process: real signals, limits, and what became of it
    faults.py         what goes wrong inside such a process: killed at a call, failing and full disks
    jobs.py           tiny runs of every kind, each of them left alone once
    comparing.py      is a run, bit for bit, the one that was left alone?
    interruptions.py  trials: interrupt, resume until it is final, compare
    sandbox.py        a folder in which anything executed or written outside of a run shows
    hostile/          what a stranger might send: run folders, recorded data, clips; and what reads them
    results.py        a trial, and what came out of it
    liars.py          environments that lie, hang and leave
    suite.py          all kinds of trials, several at a time, and the table
    __main__.py       the command: `make chaos`, or `python -m tests.chaos --help`
    test_chaos.py     a sample of every kind, for `make test`

A trial is named by its kind, its number and the seed, which determine all that is drawn at random.
"""
