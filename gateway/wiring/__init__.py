"""Parts of the composition root; only gateway/app.py uses them."""
