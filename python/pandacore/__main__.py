"""``python -m pandacore``: the command line."""

from pandacore.cli.main import main

main()
