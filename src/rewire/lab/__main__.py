"""``python -m rewire.lab``: the ``rewire`` command, for ``torchrun -m``."""

from rewire.lab.cli.main import main

main()
