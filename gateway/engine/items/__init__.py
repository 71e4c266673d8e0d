"""Items of datasets: batches, and where each item comes from."""
