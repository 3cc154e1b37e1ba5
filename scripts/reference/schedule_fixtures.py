"""Learning rates of DeiT's schedule by timm for crates/trainer/tests/schedule.rs.

    pip install torch timm && python scripts/reference/schedule_fixtures.py

Writes crates/trainer/tests/fixtures/schedule.json, each list made by timm's own `CosineLRScheduler` around an
optimizer whose rate is read off, with DeiT's settings (300 epochs of 1251 steps, 5 epochs of warm-up from 1e-6 to 1e-3, end at 1e-5):

- late: the rate of each of the 300 epochs where the scheduler is stepped after epoch e with the number e, as DeiT's main.py does.
- own: the same where it is stepped with e before epoch e.
- by_step: the rate of every 1000th step where the scheduler is stepped with each update's number.
"""

import json
from pathlib import Path

import timm
import torch
from timm.scheduler import CosineLRScheduler

OUT = Path(__file__).resolve().parents[2] / "crates/trainer/tests/fixtures/schedule.json"
EPOCHS, STEPS_PER_EPOCH = 300, 1251


def scheduler(unit: int) -> CosineLRScheduler:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
    return CosineLRScheduler(
        optimizer, t_initial=EPOCHS * unit, lr_min=1e-5, warmup_t=5 * unit, warmup_lr_init=1e-6, t_in_epochs=unit == 1,
    )


def by_epoch(late: bool) -> list[float]:
    schedule, rates = scheduler(1), []
    for epoch in range(EPOCHS):
        if not late:
            schedule.step(epoch)
        rates.append(schedule.optimizer.param_groups[0]["lr"])
        if late:
            schedule.step(epoch)
    return rates


def by_step() -> list[float]:
    schedule, rates = scheduler(STEPS_PER_EPOCH), []
    for step in range(0, EPOCHS * STEPS_PER_EPOCH, 1000):
        schedule.step_update(step)
        rates.append(schedule.optimizer.param_groups[0]["lr"])
    return rates


def main() -> None:
    lists = {"late": by_epoch(True), "own": by_epoch(False), "by_step": by_step()}
    versions = {"torch": torch.__version__, "timm": timm.__version__}
    OUT.write_text(json.dumps({"versions": versions, **lists}) + "\n")


if __name__ == "__main__":
    main()
