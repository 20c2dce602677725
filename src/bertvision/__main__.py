"""`python -m bertvision`: the command line without its script."""

from bertvision.cli import main

main()
