"""The TPU compiler without a chip: a rank's program traced as on a TPU, lowered by torch_tpu, compiled by libtpu.

Everything here but `job` and `asked` runs in a child process, which libtpu may take with it: it prints, locks a file
and can abort.
"""
