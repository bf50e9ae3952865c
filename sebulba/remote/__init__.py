"""Actors in processes of their own, on this machine or others, which may die at any moment.

The learner's host keeps an `Actor` for each, whose collector (`collector`, made by `make`) asks a
process (`process`) to act. Only arrays and plain records cross (`wire`), also for what was raised
(`failures`). Ray starts the processes, starts those that died again, and carries what crosses
(`ray_processes`).
"""
