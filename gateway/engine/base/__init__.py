"""What reads of objects and of items share: services, streams from a source, homes, and the plan in force."""
