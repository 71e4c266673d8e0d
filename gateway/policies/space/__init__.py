"""Who gets which space: allocation, probing, and the rotation of chunks."""
