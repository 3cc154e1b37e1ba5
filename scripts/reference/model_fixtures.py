"""Golden values of timm's Vision Transformer for the tests of crates/model.

    pip install torch timm && python scripts/reference/model_fixtures.py

Writes crates/model/tests/fixtures/timm_vit.safetensors (f32): the weights of a small model under timm's names, all of them random,
norms and biases included; `input.images` [3, 3, 32, 32]; and, computed by timm in float64, `output.logits` [3, 5] and `output.tokens`
[3, 17, 32]. The metadata names the versions used. Reruns give the same file with the same versions of torch.
"""

from pathlib import Path

import timm
import torch
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer

OUT = Path(__file__).resolve().parents[2] / "crates/model/tests/fixtures/timm_vit.safetensors"


def main() -> None:
    generator = torch.Generator().manual_seed(20220915)
    model = VisionTransformer(
        img_size=32, patch_size=8, num_classes=5, embed_dim=32, depth=3, num_heads=2, mlp_ratio=2
    ).eval()
    weights = {}
    for name, parameter in model.named_parameters():
        centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        weights[name] = centre + 0.2 * torch.randn(parameter.shape, generator=generator)
    model.load_state_dict(weights, strict=True)
    images = torch.randn(3, 3, 32, 32, generator=generator)

    model = model.double()
    with torch.no_grad():
        tokens = model.forward_features(images.double())
        logits = model.forward_head(tokens)
    assert torch.equal(logits, model(images.double()))

    tensors = dict(weights)
    tensors["input.images"] = images
    tensors["output.logits"] = logits.float()
    tensors["output.tokens"] = tokens.float()
    OUT.parent.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        OUT,
        metadata={"timm": timm.__version__, "torch": torch.__version__},
    )
    print(f"{OUT}: {len(tensors)} tensors, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
