"""Where two runs part: what they were made of, and the numbers that they computed. No jax.

Files, in reading order:

    starts       settings, code, versions, machine and flags of two runs, and which of them differ
    rows         the first rows of checksums and of metrics that differ, and by how much
    checkpoints  whether their networks are those of the checksums, and which can be repeated from
    verdict      the same bits, consistent with rounding, or another result
"""
