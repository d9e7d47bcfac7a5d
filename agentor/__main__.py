"""`python -m agentor` is the program `agentor`."""

from agentor.cli import main

main(prog_name="agentor")
