"""How an update is taken: on each learner device, and over all of them."""
