"""One forward of a model: what goes in, which module is called, and which part of its output is looked at."""

from __future__ import annotations

from typing import Any

from tpplan.model.config import ModelSpec, config_value, text_config

SEQUENCE = 12


def runnable(model: Any) -> Any:
    """The module whose forward makes logits: the model, or the part that generates where its class only holds parts."""
    import torch

    if type(model).forward is not torch.nn.Module.forward:
        return model
    parts = [part for part in model.children() if getattr(type(part), "can_generate", lambda: False)()]
    return parts[0] if parts else model


def example_inputs(spec: ModelSpec, sequence: int = SEQUENCE) -> dict[str, Any]:
    """Real inputs for one forward: token ids of shape (1, sequence) that are no special token, int64."""
    import torch

    text = text_config(spec.config)
    vocab = config_value(text, "vocab_size") or config_value(spec.config, "vocab_size") or 2
    special = _special_tokens(spec.config) | _special_tokens(text)
    plain = [token for token in range(min(vocab, 4 * sequence + len(special))) if token not in special]
    ids = torch.tensor([[plain[index % len(plain)] for index in range(sequence)]])
    inputs = {"input_ids": ids}
    if config_value(spec.config, "is_encoder_decoder"):
        inputs["decoder_input_ids"] = ids.clone()
    return inputs


def _special_tokens(config: Any) -> set[int]:
    named = {key: value for key, value in vars(config).items() if key.endswith(("_token_id", "_token_index"))}
    return {token for token in named.values() if isinstance(token, int)}


def main_output(output: Any) -> Any:
    """The logits, or the last hidden state of a model without a head."""
    for name in ("logits", "last_hidden_state"):
        if getattr(output, name, None) is not None:
            return getattr(output, name)
    return output[0]
