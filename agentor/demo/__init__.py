"""The demo: an agent is killed half-way and finished by another process, for everyone to see.

`weather` is the user's program, `provider` the stand-in for a model, `story` what happens, in order.
"""
