"""The bench: agentor beside its peers, on this machine, in one go.

`python -m bench` measures every figure in `docs/performance.md`. Each trial is a process of its own; the trials of a
figure are interleaved (ours, a peer, ours, a peer ...), and only medians and ratios of one run of the bench are told.
"""
