"""`python -m torchwise`."""

from torchwise.cli import main

main()
