"""A chat whose next turn computes only what is new: `transformers_chat.py [MODEL [DIRECTORY]]`.

Without a model's name it talks with a tiny one of random weights, which says nothing of sense.
"""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from radix.engines.transformers import PrefixGenerator
from tiers.disk import DiskTier
from tiers.host import HostTier

name, directory, *_ = [*sys.argv[1:], "", ""]
if name:
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    words = AutoTokenizer.from_pretrained(name)
    encode, decode = words.encode, words.decode
else:
    tiny = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**tiny, num_attention_heads=4, eos_token_id=None))
    encode, decode = (lambda text: list(text.encode())), (lambda ids: bytes(ids).decode("latin-1"))
tiers = [HostTier(64 << 20), *([DiskTier(directory, limit_bytes=4 << 30)] if directory else [])]
with PrefixGenerator(model.eval(), tiers) as cached:
    history = encode("A conversation between a curious person and a patient teacher.\n")
    for line in sys.stdin:
        history += encode(f"Person: {line.strip()}\nTeacher:")
        out = cached.generate([history], max_new_tokens=40, do_sample=False)[0].tolist()
        print("Teacher:", repr(decode(out[len(history) :])))
        history = out
    counts = cached.counters
    print(f"{counts['generate.hit_tokens']} of {counts['generate.prompt_tokens']} tokens cached")
