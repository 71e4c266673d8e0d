"""The index of a node: its tables, its threads, and the operations on its rows."""
