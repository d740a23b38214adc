"""Effective rank of the hidden states of runs, exp(entropy of the covariance's eigenvalues).

    python -m experiments.hidden_rank unseen.txt RUN...

The last layer of each run's discriminator, at 256 sequences of 128 tokens of the text.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

text = Path(sys.argv[1]).read_text(encoding="utf-8").replace("\n", " ")
for run in sys.argv[2:]:
    tokenizer = AutoTokenizer.from_pretrained(f"{run}/discriminator")
    model = AutoModel.from_pretrained(f"{run}/discriminator").eval()
    ids = tokenizer(text, return_tensors="pt", truncation=False)["input_ids"][0]
    batches = ids[: 256 * 128].view(-1, 32, 128)
    with torch.no_grad():
        states = torch.cat([model(input_ids=batch).last_hidden_state for batch in batches])
    flat = states.flatten(0, 1).double()
    power = torch.linalg.eigvalsh(torch.cov(flat.T)).clamp(min=1e-30)
    share = power / power.sum()
    rank = torch.exp(-(share * share.log()).sum()).item()
    print(f"{run}\teffective rank {rank:.1f} of {flat.shape[1]}")
