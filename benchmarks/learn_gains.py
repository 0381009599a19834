"""Learn the order of trials: search on small nets and programs of the zoo, and keep what each change of a plan gained.

All are searched with plans of the same precision, and the float32 nets once more with `--allow quantized`: such a
search has many more plans, most of which compile nothing, so that an order by compile time is a poor one.

The result is `src/torchwise/study/past_studies.json`, which comes with the package. Searches take the order of their
trials from it, and from the user's own store, and nothing else. No other benchmark measures the nets of
`benchmarks/learning_targets.py`.

Finished studies are in the store, so that the same command continues a stopped run. --merge adds the studies of other
stores, such as one from a GPU. With --seconds 0 nothing is searched. Studies of one model and device are kept once.

    python benchmarks/learn_gains.py --store learn.db        # some 70 minutes on two cores
    python benchmarks/learn_gains.py --store learn.db --seconds 0 --merge llama.db
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from learning_targets import HALVED, MODELS

import torchwise
from torchwise.errors import TorchwiseError
from torchwise.plan import Numerics, Trait
from torchwise.records import codec
from torchwise.store import open_storage
from torchwise.study import gain_model
from torchwise.study.gain_model import PastStudy, summarize_study

HERE = Path(__file__).parent
NETS = [f"{HERE / 'learning_targets.py'}:{name}" for name in (*MODELS, *(f"{name}_bf16" for name in HALVED))]
PROGRAMS = [
    *(
        "zoo:tutorial.many_small_ops@small",
        "zoo:tutorial.elementwise_chain@small",
        "zoo:tutorial.transformer_block@small",
    ),
    *("zoo:energy_flow.neuron@small", "zoo:energy_flow.fused_step@small", "zoo:energy_flow.carrier@small"),
    *("zoo:energy_flow.rollout@small", "zoo:ivhl.field_superposition@small", "zoo:ivhl.gross_pitaevskii@small"),
    *("zoo:ivhl.tensor_network@small", "zoo:spinlock.operator@small", "zoo:arr_coc.scorers@small"),
    *("zoo:arr_coc.model@small", "hf:gpt2@decode,layers=4,length=64", "hf:t5-small@layers=2,length=48"),
]
FEWER_BITS = [
    *(f"{HERE / 'learning_targets.py'}:{name}" for name in MODELS),
    *("zoo:tutorial.transformer_block@small", "hf:gpt2@decode,layers=4,length=64", "hf:t5-small@layers=2,length=48"),
]
"""Those that are searched once more with numbers of fewer bits."""
TOLERANCE = 0.05
"""Relative error that they may have then."""
CALLS = 10**9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--merge", type=Path, nargs="*", default=[])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--budget", type=float, default=75.0, help="seconds of each search (default 75)")
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which no further search starts")
    options = parser.parse_args()
    began = time.monotonic()
    given = {"device": options.device, "budget": options.budget, "store": str(options.store)}
    fewer_bits = {"allow": Numerics.QUANTIZED, "tolerance": TOLERANCE}
    for target, allowed in (*((one, {}) for one in (*NETS, *PROGRAMS)), *((one, fewer_bits) for one in FEWER_BITS)):
        if time.monotonic() - began >= options.seconds:
            break
        try:
            print(repr(torchwise.tune(target, calls=CALLS, effort="standard", **given, **allowed)), flush=True)
        except TorchwiseError as error:
            print(f"{target}: {error}", flush=True)
    found = [past for store in (options.store, *options.merge) for past in read_store(store)]
    out = Path(gain_model.__file__).with_name(gain_model.SHIPPED)
    out.write_text("[\n" + ",\n".join(codec.to_json(past) for past in found) + "\n]\n")
    print(f"{len(found)} studies in {out}")


def read_store(file: Path) -> list[PastStudy]:
    """Return the past studies of a store, the newest of each model, device and numerics.

    Those are left out in which threads waited for cores: they tell of the machine's other programs.
    """
    found: dict[tuple[str, str, Numerics], PastStudy] = {}
    with open_storage(f"sqlite:///{file.absolute()}", existing=True) as storage:
        for summary in storage.list_studies():
            study = storage.get_study(summary.id)
            if Trait.CONTENDED_CORES in study.inspection.traits:
                print(f"left out, as other programs ran beside it: {study.workload.target}")
            elif past := summarize_study(study):
                found.setdefault((study.inspection.identity, study.workload.device, study.allow), past)
    return list(found.values())


if __name__ == "__main__":
    main()
