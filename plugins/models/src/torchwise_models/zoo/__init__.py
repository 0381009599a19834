"""Reference programs from four fields, and whole training steps with them. One module or package for each family."""
