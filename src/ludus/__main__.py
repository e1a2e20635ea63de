"""`python -m ludus` is the command `ludus`."""

from ludus.cli import main

main()
