"""Train a small language model with the Trainer of Transformers.

python examples/programs/transformers_trainer.py [EPOCHS]
"""

from __future__ import annotations

import sys
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments


def main(epochs: int = 5) -> None:
    """Train, and print the mean loss."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=64, n_embd=64, n_layer=2, n_head=2, n_positions=32, bos_token_id=0, eos_token_id=None
    )
    numbers = (torch.arange(16) + torch.arange(64)[:, None]) % 64  # counting, from each number on
    data = [{"input_ids": row, "labels": row} for row in numbers]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=16,
            use_cpu=True,
            disable_tqdm=True,
            report_to=[],
            logging_strategy="no",
            save_strategy="no",
        )
        trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data)
        trainer.remove_callback(PrinterCallback)
        loss = trainer.train().training_loss
    print(f"loss {loss:.3f} over {epochs} epochs")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
