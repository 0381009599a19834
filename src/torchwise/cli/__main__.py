"""`python -m torchwise.cli`."""

from torchwise.cli import main

main()
