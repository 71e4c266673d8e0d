"""Parts of the composition root, for gateway/app.py and the command that starts it."""
