"""The launch stage: real ranks under torchrun, and torchrun with the TPU launch environment."""
