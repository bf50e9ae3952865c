"""How fast a config runs on these devices, and how it could run faster."""
