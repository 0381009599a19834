"""One file per subject: each judges what `facts` saw, and says what to do."""
