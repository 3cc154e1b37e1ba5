"""Makes crates/data/assets/imagenet_classes.tsv and imagenet_val_labels.bin.

    python imagenet_classes.py TIMM_INFO TFDS_IMAGENET OUT

TIMM_INFO: the folder timm/data/_info of timm 1.0.31 (Apache-2.0).
TFDS_IMAGENET: the folder tensorflow_datasets/datasets/imagenet2012 of tensorflow-datasets 4.9.10 (Apache-2.0).
OUT: the folder crates/data/assets.

imagenet_classes.tsv: a line a class, in the order of labels: WordNet id, names (of WordNet, joined by commas), and the
letters of the subsets that hold the class (a: ImageNet-A, r: ImageNet-R), or a dash.
imagenet_val_labels.bin: label of ILSVRC2012_val_00000001.JPEG and the 49,999 after it, 16 bits each, little-endian.
"""

import struct
import sys
from pathlib import Path


def lines(path):
    return path.read_text().splitlines()


def main(info, tfds, out):
    wnids = lines(info / "imagenet_synsets.txt")
    assert len(wnids) == 1000 and wnids == sorted(wnids) == lines(tfds / "labels.txt")
    names = dict(line.split("\t", 1) for line in lines(info / "imagenet_synset_to_lemma.txt"))
    subsets = {}
    for letter in "ar":
        indices = [int(i) for i in lines(info / f"imagenet_{letter}_indices.txt")]
        assert [wnids[i] for i in indices] == lines(info / f"imagenet_{letter}_synsets.txt")
        assert len(indices) == 200
        subsets[letter] = set(indices)
    rows = []
    for label, wnid in enumerate(wnids):
        letters = "".join(letter for letter in "ar" if label in subsets[letter]) or "-"
        rows.append(f"{wnid}\t{names[wnid]}\t{letters}\n")
    (out / "imagenet_classes.tsv").write_text("".join(rows))

    label_of = {wnid: label for label, wnid in enumerate(wnids)}
    labels = [label_of[wnid] for wnid in lines(tfds / "validation_labels.txt")]
    assert len(labels) == 50_000 and all(labels.count(label) == 50 for label in range(1000))
    (out / "imagenet_val_labels.bin").write_bytes(struct.pack("<50000H", *labels))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
