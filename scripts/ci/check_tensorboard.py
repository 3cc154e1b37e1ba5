"""TensorBoard's own reader against metrics.jsonl, after an unbroken run and after one killed five times.

    python scripts/ci/check_tensorboard.py target/release/manyheads

needs `pip install tensorboard`. Ends with 1 and says what differs where something does.
"""

import json
import random
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tensorboard.backend.event_processing import event_accumulator
from tensorboard.util import tensor_util

CONFIG = """
[run]
device = "cpu"
[model]
image_size = 28
patch_size = 7
channels = 1
classes = 10
width = 16
depth = 2
heads = 4
[data]
source = "embedded"
mean = [0.286]
std = [0.353]
[augment]
crop = "none"
[mix]
mixup = 0.8
[optimizer]
reference_batch = 0
[schedule]
interval = "step"
warmup_epochs = 0.5
[train]
epochs = 2
batch_size = 64
accumulate = 1
[ema]
enabled = true
decay = 0.99
[checkpoint]
every_steps = 17
[log]
every_steps = 5
"""

TRAIN = {"loss", "learning_rate", "gradient_norm", "epoch", "rate_images_per_second", "rate_data_wait", "rate_memory_bytes"}
EVAL = {"top1", "top5", "loss", "ema_top1", "ema_top5", "ema_loss", "rate_images_per_second"}


def f32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def expected(run):
    """{tag: [(wall time, step, value)]} by metrics.jsonl."""
    tags, evaluations = {}, []
    for line in (run / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        keys = {"train": TRAIN, "eval": EVAL}.get(record["kind"], set())
        for key in sorted(keys & record.keys()):
            tag = record["kind"] + "/" + key.removeprefix("rate_")
            tags.setdefault(tag, []).append((record["time_unix"], record["step"], f32(record[key])))
        if record["kind"] == "eval":
            evaluations.append(record["step"])
    return tags, evaluations


def check(run):
    """Compares what TensorBoard reads with the metrics; returns what does not depend on the clock."""
    events = event_accumulator.EventAccumulator(str(run / "tensorboard"), size_guidance={kind: 0 for kind in event_accumulator.DEFAULT_SIZE_GUIDANCE})
    events.Reload()
    scalars, evaluations = expected(run)
    tags = events.Tags()
    assert sorted(tags["scalars"]) == sorted(scalars), (tags["scalars"], sorted(scalars))
    seen = {}
    for tag, values in scalars.items():
        read = [(event.wall_time, event.step, event.value) for event in events.Scalars(tag)]
        assert read == values, (tag, [pair for pair in zip(read, values) if pair[0] != pair[1]][:3], len(read), len(values))
        if not tag.endswith(("per_second", "wait", "memory_bytes")):
            seen[tag] = [value[1:] for value in values]
    assert len(tags["histograms"]) > 20 and "weights.blocks.1/attn.qkv.weight" in tags["histograms"], tags["histograms"]
    for tag in tags["histograms"]:
        histograms = events.Histograms(tag)
        assert [event.step for event in histograms] == evaluations, (tag, [event.step for event in histograms], evaluations)
        for event in histograms:
            value = event.histogram_value
            assert sum(value.bucket) == value.num and value.bucket_limit[-1] == value.max >= value.min, (tag, value)
        seen[tag] = [(event.step, event.histogram_value) for event in histograms]
    assert tags["images"] == ["samples"], tags["images"]
    (image,) = events.Images("samples")
    assert image.step == 0 and image.encoded_image_string.startswith(b"\x89PNG\r\n") and image.width == image.height == 448, image
    seen["samples"] = image.encoded_image_string
    (text,) = events.Tensors("config")
    config = tensor_util.make_ndarray(text.tensor_proto).item().decode()
    assert config == "```toml\n" + (run / "config.toml").read_text() + "```\n", config
    assert events.PluginTagToContent("text").keys() == {"config"}
    return seen


def main():
    program = str(Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "tiny.toml").write_text(CONFIG)

        def start(*arguments):
            return subprocess.Popen([program, *arguments], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

        def finish(process):
            _, error = process.communicate()
            assert process.returncode == 0, error.decode()

        began = time.monotonic()
        finish(start("train", "tiny.toml", "--out", "whole"))
        took = time.monotonic() - began
        whole = check(folder / "whole")
        random.seed(5)

        def killed_five_times(longest):
            subprocess.run(["rm", "-rf", "broken"], cwd=folder, check=True)
            arguments = ["train", "tiny.toml", "--out", "broken"]
            for _ in range(5):
                process = start(*arguments)
                time.sleep(random.uniform(0.3, 1) * longest)
                if process.poll() is not None:
                    return False
                process.kill()
                process.communicate()
                if (folder / "broken/config.toml").exists():
                    arguments = ["resume", "broken"]
                else:
                    subprocess.run(["rm", "-rf", "broken"], cwd=folder, check=True)
            finish(start(*arguments))
            return True

        # How far a run gets between two kills depends on what else the machine does; where five do not fit in, they come faster.
        assert any(killed_five_times(took * share) for share in (0.3, 0.12, 0.04)), "the run is too short for five kills"
        broken = check(folder / "broken")
        assert whole.keys() == broken.keys()
        for tag, values in whole.items():
            assert values == broken[tag], tag
        if len(sys.argv) > 2:
            Path(sys.argv[2]).write_bytes(whole["samples"])
        print(f"TensorBoard reads {len(whole)} tags of either run, and every value is that of metrics.jsonl")


main()
