"""Its being here puts this folder on the path: what several test folders share lies beside it."""
