"""How long does `torchwise explain` take on models that people have, and what does it find first?

    python benchmarks/explain_models.py [TARGET…] [--device cuda]

Each is explained by the command itself, in a process of its own: wall seconds from the command to its end, and the
first finding. ResNet-50 is that of Transformers where torchvision, which timm needs, cannot be imported.
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
    asked = parser.parse_args()
    here = detect(asked.device)
    print(f"{here.hardware}, torch {here.torch}\n\n| target | seconds | findings | the dearest |\n" + "|---" * 4 + "|")
    for target in asked.targets:
        print(row(target, asked.device), flush=True)


def row(target: str, device: str) -> str:
    """Explain one target; return its line."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder, "told.json")
        command = [sys.executable, "-m", "torchwise.cli", "explain", target, "--device", device, "--no-keep"]
        start = time.monotonic()
        done = subprocess.run([*command, "--json", str(told)], capture_output=True, text=True, check=False)
        seconds = time.monotonic() - start
        if done.returncode:
            return f"| {target} | {seconds:.0f} | exit code {done.returncode} | {done.stderr.strip()[-200:]} |"
        findings = json.loads(told.read_text())["findings"]
    return f"| {target} | {seconds:.0f} | {len(findings)} | {findings[0]['title'] if findings else '–'} |"


if __name__ == "__main__":
    main()
