"""Would this pod fit, and if not, why? The rules are the scheduler's; nothing is changed anywhere."""
