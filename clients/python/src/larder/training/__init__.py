"""Reading for training: loaders and runs, jobs with their heartbeats, sharing, importance."""
