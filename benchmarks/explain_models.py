"""How long does `torchwise explain` take on common models, and what is its first finding?

    python benchmarks/explain_models.py [TARGET…] [--device cuda]

The command itself explains each model, in its own process. The output shows its wall seconds and the first finding. If
torchvision, which timm needs, cannot be imported, ResNet-50 is the one of Transformers.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from torchwise.environment import default_device, detect

RESNET = "timm:resnet50" if importlib.util.find_spec("torchvision") else f"{Path(__file__).parent}/targets.py:resnet50"
TARGETS = (RESNET, "hf:bert-base-uncased", "hf:gpt2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=TARGETS)
    parser.add_argument("--device", default=default_device())
    options = parser.parse_args()
    here = detect(options.device)
    print(
        f"{here.hardware}, torch {here.torch}\n\n| target | seconds | findings | largest saving |\n" + "|---" * 4 + "|"
    )
    for target in options.targets:
        print(row(target, options.device), flush=True)


def row(target: str, device: str) -> str:
    """Explain one target, and return its line."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "told.json")
        command = [sys.executable, "-m", "torchwise.cli", "explain", target, "--device", device, "--no-keep"]
        start = time.monotonic()
        done = subprocess.run([*command, "--json", str(file)], capture_output=True, text=True, check=False)
        seconds = time.monotonic() - start
        if done.returncode:
            return f"| {target} | {seconds:.0f} | exit code {done.returncode} | {done.stderr.strip()[-200:]} |"
        findings = json.loads(file.read_text())["findings"]
    return f"| {target} | {seconds:.0f} | {len(findings)} | {findings[0]['title'] if findings else '–'} |"


if __name__ == "__main__":
    main()
