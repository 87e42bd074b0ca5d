#!/usr/bin/env python3
"""Exports networks with PyTorch's two exporters, sizes symbolic wherever they allow it, and records what ONNX Runtime computes.

    python3 tests/models/export.py                          # the networks kept here
    python3 tests/models/export.py --all FOLDER [NAME...]    # every network, by both exporters

Writes NAME_EXPORTER.onnx and .npz in tests/models/exported or the folder (inputs `in.K.NAME` and outputs `out.K.NAME` of several
calls K with different sizes). Weights are random: widths are small, and nothing is downloaded. Needs torch, torchvision,
transformers, onnx, onnxscript and onnxruntime; the script makes an environment in target/export-venv and runs itself there. What
exporters write depends on their version, which is why the models are in the repository.
"""

import argparse
import pathlib
import subprocess
import sys
import traceback
import venv
import warnings

PACKAGES = ["torch==2.15.0", "torchvision==0.29.2", "transformers==5.23.0", "onnx==1.23.2", "onnxscript", "onnxruntime==1.31.1"]
here = pathlib.Path(__file__).resolve().parent
environment = here.parents[1] / "target" / "export-venv"

if "--inside" not in sys.argv:
    python = environment / "bin" / "python"
    if not python.exists():
        venv.create(environment, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    sys.exit(subprocess.run([python, __file__, "--inside", *sys.argv[1:]]).returncode)

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime  # noqa: E402
import torch  # noqa: E402
import torchvision  # noqa: E402
import transformers  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

warnings.filterwarnings("ignore")
# The networks kept in the repository, and the exporter of each.
KEPT = [
    ("vision_transformer_batch", "script"),  # parts of shapes up to the largest integer; reshapes that only -1 names
    ("vision_transformer_any_size", "dynamo"),  # one token more than patches, positions resampled to them
    ("detector_head", "dynamo"),  # (n - 1) / 8 + 1 for the extents of a convolution
    ("u_net_skip", "script"),  # padding by a matrix of sizes, turned around
    ("u_net_skip", "dynamo"),  # padding by n / 2 - 2 * (n / 4)
    ("swin", "dynamo"),  # windows of padded images, rounded up again and again; remainders by sizes
    ("decoder_with_cache", "script"),  # a triangle that starts at a size
    ("relative_position", "script"),  # a range of floats that counts down from a size
    ("point_set", "script"),  # an extent that is at most 1
    ("patches_of_a_map", "script"),  # ceil(h / 2) * 2 in floats
]

IMAGE = {0: "batch", 2: "height", 3: "width"}
BATCH = {0: "batch"}
TOKENS = {0: "batch", 1: "length"}
NETWORKS = {}


def network(axes, *sizes):
    """A function from nothing to (module, function from sizes to inputs); `axes` names the symbolic axes of each input."""

    def add(make):
        NETWORKS[make.__name__] = (make, axes, sizes)
        return make

    return add


SQUARES = ((2, 32, 32), (1, 32, 64), (1, 64, 32))


def noise(*shape):
    """Sixteenths, which compress."""
    return torch.randint(-32, 33, shape) / 16


def picture(b, h, w):
    return (noise(b, 3, h, w),)


def square(side):
    return lambda b: (noise(b, 3, side, side),)


def ids(b, n):
    return (torch.randint(0, 50, (b, n)),)


def masked(b, n):
    mask = torch.ones(b, n, dtype=torch.int64)
    mask[-1, n - 1 :] = 0
    return torch.randint(0, 50, (b, n)), mask


class Picked(nn.Module):
    """A model of transformers, called by keyword, of which one result is wanted."""

    def __init__(self, model, names, result):
        super().__init__()
        self.model, self.names, self.result = model, names, result

    def forward(self, *inputs):
        return self.model(**dict(zip(self.names, inputs)), return_dict=True)[self.result]


# Convolutional networks.

@network([IMAGE], *SQUARES)
def resnet():
    from torchvision.models.resnet import BasicBlock, ResNet

    model = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10, width_per_group=64)
    model.inplanes = 8
    model.conv1, model.bn1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8)
    for k in range(4):
        setattr(model, f"layer{k + 1}", model._make_layer(BasicBlock, 8 << min(k, 1), 1, 1 if k == 0 else 2))
    model.fc = nn.Linear(16, 10)
    return model, picture


@network([IMAGE], *SQUARES)
def mobilenet_v2():
    table = [[1, 8, 1, 1], [3, 12, 1, 2], [3, 16, 2, 2]]
    return torchvision.models.MobileNetV2(10, 0.25, table, round_nearest=4), picture


@network([IMAGE], *SQUARES)
def mobilenet_v3():
    from functools import partial
    from torchvision.models.mobilenetv3 import InvertedResidualConfig, MobileNetV3

    block = partial(InvertedResidualConfig, width_mult=0.5)
    blocks = [block(16, 3, 16, 16, True, "RE", 2, 1), block(16, 3, 32, 24, False, "HS", 2, 1), block(24, 5, 32, 24, True, "HS", 1, 1)]
    return MobileNetV3(blocks, 32, 10), picture


@network([IMAGE], *SQUARES)
def efficientnet():
    from torchvision.models.efficientnet import EfficientNet, FusedMBConvConfig, MBConvConfig

    blocks = [FusedMBConvConfig(1, 3, 1, 8, 8, 1), MBConvConfig(4, 3, 2, 8, 12, 2), MBConvConfig(4, 5, 2, 12, 16, 1)]
    return EfficientNet(blocks, 0.2, num_classes=10, last_channel=32), picture


@network([IMAGE], *SQUARES)
def convnext():
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    return ConvNeXt([CNBlockConfig(8, 16, 1), CNBlockConfig(16, None, 1)], num_classes=10), picture


@network([IMAGE], *SQUARES)
def shufflenet():
    return torchvision.models.ShuffleNetV2([1, 2, 1], [8, 8, 16, 16, 32], num_classes=10), picture


@network([IMAGE], *SQUARES)
def densenet():
    return torchvision.models.DenseNet(4, (2, 2), 8, num_classes=10), picture


@network([IMAGE], *SQUARES)
def squeezenet():
    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            Fire = torchvision.models.squeezenet.Fire
            self.features = nn.Sequential(
                nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True), Fire(8, 4, 8, 8), Fire(16, 4, 8, 8),
                nn.MaxPool2d(3, 2, ceil_mode=True), nn.Conv2d(16, 10, 1), nn.AdaptiveAvgPool2d(1))

        def forward(self, x):
            return torch.flatten(self.features(x), 1)

    return Small(), picture


@network([IMAGE], *SQUARES)
def regnet():
    from torchvision.models.regnet import BlockParams, RegNet

    return RegNet(BlockParams([1, 1], [8, 16], [4, 4], [2, 2], [1, 1], 0.25), num_classes=10, stem_width=8), picture


@network([BATCH], (1,), (2,), (4,))
def vgg_fixed_image():
    from torchvision.models.vgg import VGG, make_layers

    model = VGG(make_layers([4, "M", 8, "M"]), num_classes=10, init_weights=False)
    model.avgpool = nn.AdaptiveAvgPool2d(2)
    model.classifier = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 10))
    return model, square(32)


# Detection and segmentation.

@network([IMAGE], *SQUARES)
def feature_pyramid():
    class Pyramid(nn.Module):
        def __init__(self):
            super().__init__()
            self.stages = nn.ModuleList(nn.Sequential(nn.Conv2d(i, o, 3, 2, 1), nn.BatchNorm2d(o), nn.ReLU())
                                        for i, o in ((3, 8), (8, 12), (12, 16)))
            self.pyramid = torchvision.ops.FeaturePyramidNetwork([8, 12, 16], 8)

        def forward(self, x):
            features = {}
            for k, stage in enumerate(self.stages):
                x = stage(x)
                features[str(k)] = x
            return tuple(self.pyramid(features).values())

    return Pyramid(), lambda b, h, w: picture(b, h + 4, w + 2)


@network([IMAGE], *SQUARES)
def deeplab():
    from torchvision.models.segmentation.deeplabv3 import ASPP
    from torchvision.models.segmentation.fcn import FCNHead

    class Segment(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU())
            self.aspp, self.head = ASPP(8, [2, 3], 8), FCNHead(8, 5)

        def forward(self, x):
            y = self.head(self.aspp(self.backbone(x)))
            return F.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=False)

    return Segment(), picture


@network([IMAGE], *SQUARES)
def u_net_skip():
    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
            self.d, self.e = nn.Conv2d(16, 4, 3, padding=1), nn.Conv2d(8, 2, 3, padding=1)
            self.up = nn.ConvTranspose2d(8, 8, 2, 2)

        def forward(self, x):
            a = F.relu(self.a(x))
            b = F.relu(self.b(F.max_pool2d(a, 2)))
            c = self.up(F.relu(self.c(F.max_pool2d(b, 2))))
            dh, dw = b.shape[2] - c.shape[2], b.shape[3] - c.shape[3]
            c = F.pad(c, [dw // 2, dw - dw // 2, dh // 2, dh - dh // 2])
            d = F.relu(self.d(torch.cat([b, c], 1)))
            d = F.interpolate(d, size=a.shape[2:], mode="bilinear", align_corners=True)
            return self.e(torch.cat([a, d], 1))

    return UNet(), lambda b, h, w: picture(b, h // 2 + 1, w // 2 + 3)


@network([IMAGE], *SQUARES)
def detector_head():
    """Boxes decoded from a grid of anchors, as one-stage detectors do."""

    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3, 4, 1), nn.SiLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.SiLU())
            self.head = nn.Conv2d(8, 3 * 9, 1)
            self.register_buffer("anchors", torch.tensor([[10.0, 13], [16, 30], [33, 23]]))

        def forward(self, x):
            y = self.head(self.backbone(x))
            b, _, h, w = y.shape
            y = y.view(b, 3, 9, h, w).permute(0, 1, 3, 4, 2)
            grid = torch.stack(torch.meshgrid(torch.arange(w), torch.arange(h), indexing="xy"), 2).view(1, 1, h, w, 2).float()
            xy = (y[..., 0:2].sigmoid() * 2 - 0.5 + grid) * 8
            wh = (y[..., 2:4].sigmoid() * 2) ** 2 * self.anchors.view(1, 3, 1, 1, 2)
            return torch.cat([xy, wh, y[..., 4:].sigmoid()], -1).reshape(b, -1, 9)

    return Detector(), picture


@network([IMAGE], *SQUARES)
def spatial_transformer():
    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.where, self.conv = nn.Sequential(nn.Conv2d(3, 4, 5, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(3)), nn.Conv2d(3, 4, 3)
            self.theta = nn.Linear(36, 6)

        def forward(self, x):
            theta = self.theta(self.where(x).flatten(1)).view(-1, 2, 3)
            grid = F.affine_grid(theta, x.size(), align_corners=False)
            return self.conv(F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False))

    return Transformer(), picture


# Attention over images.

@network([BATCH], (2,), (1,), (5,))
def vision_transformer_batch():
    model = torchvision.models.VisionTransformer(image_size=32, patch_size=8, num_layers=1, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=10)
    return model, square(32)


@network([IMAGE], (2, 32, 32), (1, 32, 64), (3, 64, 48))
def vision_transformer_any_size():
    """Position embeddings are resampled to the grid of patches."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch, self.token = nn.Conv2d(3, 16, 8, 8), nn.Parameter(torch.randn(1, 1, 16))
            self.position = nn.Parameter(torch.randn(1, 16, 4, 4))
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1, enable_nested_tensor=False)
            self.head = nn.Linear(16, 10)

        def forward(self, x):
            y = self.patch(x)
            y = y + F.interpolate(self.position, size=y.shape[2:], mode="bicubic", align_corners=False)
            y = y.flatten(2).transpose(1, 2)
            y = torch.cat([self.token.expand(y.shape[0], -1, -1), y], 1)
            return self.head(self.encoder(y)[:, 0])

    return Model(), picture


@network([IMAGE], (2, 32, 32), (1, 32, 64), (2, 48, 32))
def swin():
    return torchvision.models.SwinTransformer([4, 4], 8, [1, 2], [2, 4], [2, 2], num_classes=10), picture


@network([BATCH], (2,), (1,), (3,))
def swin_v2_batch():
    from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer, SwinTransformerBlockV2

    model = SwinTransformer([4, 4], 8, [2, 1], [2, 4], [2, 2], num_classes=10, block=SwinTransformerBlockV2, downsample_layer=PatchMergingV2)
    return model, square(32)


@network([IMAGE], (2, 32, 32), (1, 32, 64), (2, 64, 32))
def maxvit_like():
    """Attention in windows, then over a grid, as MaxViT partitions them."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.qkv, self.out = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 24), nn.Linear(8, 8)

        def attend(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            return x + self.out(F.scaled_dot_product_attention(q, k, v))

        def forward(self, x):
            x = self.stem(x)
            b, c, h, w = x.shape
            y = x.reshape(b, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1).reshape(-1, 16, c)
            y = self.attend(y).reshape(b, h // 4, w // 4, 4, 4, c).permute(0, 5, 1, 3, 2, 4).reshape(b, c, h, w)
            y = y.reshape(b, c, 4, h // 4, 4, w // 4).permute(0, 3, 5, 2, 4, 1).reshape(-1, 16, c)
            y = self.attend(y).reshape(b, h // 4, w // 4, 4, 4, c).permute(0, 5, 3, 1, 4, 2).reshape(b, c, h, w)
            return y.mean((2, 3))

    return Model(), picture


# Text.

def config(kind, **more):
    return kind(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                max_position_embeddings=64, attn_implementation="eager", **more)


LENGTHS = ((2, 8), (1, 5), (3, 12))


@network([TOKENS, TOKENS], *LENGTHS)
def bert():
    return Picked(transformers.BertModel(config(transformers.BertConfig)), ["input_ids", "attention_mask"], "last_hidden_state"), masked


@network([TOKENS, TOKENS], *LENGTHS)
def distilbert():
    made = transformers.DistilBertConfig(vocab_size=50, dim=32, n_layers=2, n_heads=2, hidden_dim=64, max_position_embeddings=64, attn_implementation="eager")
    return Picked(transformers.DistilBertModel(made), ["input_ids", "attention_mask"], "last_hidden_state"), masked


@network([TOKENS, TOKENS], *LENGTHS)
def deberta():
    made = config(transformers.DebertaV2Config, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8)
    return Picked(transformers.DebertaV2Model(made), ["input_ids", "attention_mask"], "last_hidden_state"), masked


@network([TOKENS], *LENGTHS)
def gpt2():
    made = transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=2, n_positions=64, attn_implementation="eager", use_cache=False)
    return Picked(transformers.GPT2LMHeadModel(made), ["input_ids"], "logits"), ids


@network([TOKENS], *LENGTHS)
def llama_causal():
    made = config(transformers.LlamaConfig, num_key_value_heads=1, use_cache=False)
    return Picked(transformers.LlamaForCausalLM(made), ["input_ids"], "logits"), ids


@network([TOKENS], *LENGTHS)
def mixtral():
    made = config(transformers.MixtralConfig, num_key_value_heads=1, num_local_experts=4, num_experts_per_tok=2, use_cache=False)
    return Picked(transformers.MixtralForCausalLM(made), ["input_ids"], "logits"), ids


@network([{0: "batch", 1: "source"}, {0: "batch", 1: "target"}], (2, 8, 4), (1, 5, 7), (3, 12, 3))
def t5():
    made = transformers.T5Config(vocab_size=50, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=2, use_cache=False, decoder_start_token_id=0)
    model = Picked(transformers.T5ForConditionalGeneration(made), ["input_ids", "decoder_input_ids"], "logits")
    return model, lambda b, n, m: (*ids(b, n), *ids(b, m))


@network([TOKENS, {0: "batch", 2: "past"}, {0: "batch", 2: "past"}], (2, 1, 5), (1, 3, 4), (3, 2, 9))
def decoder_with_cache():
    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.qkv, self.out = nn.Embedding(50, 32), nn.Linear(32, 96), nn.Linear(32, 50)
            self.position = nn.Embedding(64, 32)

        def forward(self, tokens, past_k, past_v):
            past, n = past_k.shape[2], tokens.shape[1]
            x = self.embed(tokens) + self.position(torch.arange(past, past + n))
            b = x.shape[0]
            q, k, v = (t.view(b, n, 2, 16).transpose(1, 2) for t in self.qkv(x).split(32, -1))
            k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
            mask = torch.ones(n, past + n, dtype=torch.bool).tril(diagonal=past)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return self.out(y.transpose(1, 2).reshape(b, n, 32)), k, v

    return Decoder(), lambda b, n, p: (*ids(b, n), noise(b, 2, p, 16), noise(b, 2, p, 16))


@network([{0: "source", 1: "batch"}, {0: "target", 1: "batch"}], (7, 2, 5), (4, 1, 6), (9, 3, 3))
def seq2seq_transformer():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.source, self.target = nn.Embedding(50, 16), nn.Embedding(50, 16)
            self.transformer = nn.Transformer(16, 2, 1, 1, 32, dropout=0.0)
            self.out = nn.Linear(16, 50)

        def forward(self, source, target):
            n = target.shape[0]
            mask = torch.full((n, n), float("-inf")).triu(1)
            return self.out(self.transformer(self.source(source), self.target(target), tgt_mask=mask))

    return Model(), lambda s, b, t: (torch.randint(0, 50, (s, b)), torch.randint(0, 50, (t, b)))


# Attention variants.

@network([TOKENS], (2, 8), (1, 12), (3, 16))
def relative_position():
    """Distances between positions, looked up in a table and shifted in place (Transformer-XL)."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.q, self.k, self.r = nn.Embedding(50, 16), nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, tokens):
            x = self.embed(tokens)
            b, n, _ = x.shape
            at = torch.arange(n - 1, -1, -1.0).unsqueeze(-1) * torch.exp(torch.arange(0, 16, 2) * -0.5)
            r = self.r(torch.cat([at.sin(), at.cos()], -1))
            content, place = self.q(x) @ self.k(x).transpose(1, 2), self.q(x) @ r.T
            place = F.pad(place, [1, 0]).view(b, n + 1, n)[:, 1:].view(b, n, n)
            return torch.softmax((content + place) / 4, -1) @ x

    return Model(), ids


@network([TOKENS], (2, 8), (1, 12), (3, 16))
def local_attention():
    """Blocks of four that see the block before them."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.qkv = nn.Embedding(50, 16), nn.Linear(16, 48)

        def forward(self, tokens):
            q, k, v = self.qkv(self.embed(tokens)).chunk(3, -1)
            b, n, d = q.shape
            q = q.view(b, n // 4, 4, d)
            both = lambda t: torch.cat([F.pad(t, [0, 0, 4, 0])[:, :n].view(b, n // 4, 4, d), t.view(b, n // 4, 4, d)], 2)  # noqa: E731
            scores = q @ both(k).transpose(2, 3) / 4
            return (scores.softmax(-1) @ both(v)).reshape(b, n, d)

    return Model(), ids


@network([TOKENS], *LENGTHS)
def rotary_grouped():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.q, self.kv = nn.Embedding(50, 32), nn.Linear(32, 32), nn.Linear(32, 32)

        def forward(self, tokens):
            x = self.embed(tokens)
            b, n, _ = x.shape
            q, (k, v) = self.q(x).view(b, n, 4, 8).transpose(1, 2), self.kv(x).view(b, n, 2, 2, 8).unbind(2)
            angle = torch.outer(torch.arange(n).float(), 1 / 10000 ** (torch.arange(0, 8, 2) / 8))
            cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)
            turn = lambda t: t * cos + torch.cat([-t[..., 4:], t[..., :4]], -1) * sin  # noqa: E731
            k, v = (t.transpose(1, 2).repeat_interleave(2, 1) for t in (k, v))
            y = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True)
            return y.transpose(1, 2).flatten(2)

    return Model(), ids


@network([TOKENS], *LENGTHS)
def mixture_of_experts():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.gate = nn.Embedding(50, 16), nn.Linear(16, 4)
            self.up, self.down = nn.Parameter(torch.randn(4, 16, 32) / 4), nn.Parameter(torch.randn(4, 32, 16) / 6)

        def forward(self, tokens):
            x = self.embed(tokens).view(-1, 16)
            weights, chosen = self.gate(x).softmax(-1).topk(2)
            y = torch.einsum("ti,tkio->tko", x, self.up[chosen]).relu()
            y = torch.einsum("tki,tkio,tk->to", y, self.down[chosen], weights / weights.sum(-1, keepdim=True))
            return y.view(*tokens.shape, 16)

    return Model(), ids


@network([TOKENS], *LENGTHS)
def state_space():
    """A selective scan in the form of cumulative sums."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.conv, self.step = nn.Embedding(50, 16), nn.Conv1d(16, 16, 4, padding=3, groups=16), nn.Linear(16, 16)

        def forward(self, tokens):
            x = self.embed(tokens)
            n = x.shape[1]
            x = F.silu(self.conv(x.transpose(1, 2))[..., :n].transpose(1, 2))
            decay = -F.softplus(self.step(x)) * 0.1
            total = decay.cumsum(1)
            return (torch.exp(-total) * x).cumsum(1) * torch.exp(total)

    return Model(), ids


# Sequences of numbers.

SIGNAL = {0: "batch", 2: "length"}


@network([{0: "batch", 1: "length"}], (2, 6), (1, 9), (3, 4))
def lstm_stack():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.gru = nn.LSTM(8, 8, 2, batch_first=True, bidirectional=True), nn.GRU(16, 8, batch_first=True)

        def forward(self, x):
            y, (h, _) = self.lstm(x)
            z, g = self.gru(y)
            return z, h, g

    return Model(), lambda b, n: (noise(b, n, 8),)


@network([SIGNAL], (2, 400), (1, 320), (3, 640))
def wav2vec_front():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList([nn.Conv1d(1, 8, 10, 5), nn.Conv1d(8, 8, 3, 2), nn.Conv1d(8, 8, 3, 2)])
            self.norm, self.position = nn.GroupNorm(8, 8), nn.Conv1d(8, 8, 16, padding=8, groups=4)
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1, enable_nested_tensor=False)

        def forward(self, x):
            for k, conv in enumerate(self.convs):
                x = F.gelu(self.norm(conv(x)) if k == 0 else conv(x))
            x = x + F.gelu(self.position(x)[..., : x.shape[2]])
            return self.encoder(x.transpose(1, 2))

    return Model(), lambda b, n: (noise(b, 1, n),)


@network([SIGNAL], (2, 24), (1, 17), (3, 40))
def conformer_block():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.attention = nn.LayerNorm(16), nn.MultiheadAttention(16, 2, batch_first=True)
            self.wide, self.deep, self.batch = nn.Conv1d(16, 32, 1), nn.Conv1d(16, 16, 7, padding=3, groups=16), nn.BatchNorm1d(16)

        def forward(self, x):
            x = x.transpose(1, 2)
            y = self.norm(x)
            x = x + self.attention(y, y, y, need_weights=False)[0]
            y = F.glu(self.wide(x.transpose(1, 2)), 1)
            return x + F.silu(self.batch(self.deep(y))).transpose(1, 2)

    return Model(), lambda b, n: (noise(b, 16, n),)


@network([SIGNAL], (2, 24), (1, 17), (3, 40))
def temporal_convolution():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList(nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 4, 3, dilation=1 << k)) for k in range(3))

        def forward(self, x):
            for k, conv in enumerate(self.convs):
                x = x + torch.tanh(conv(F.pad(x, [2 << k, 0])))
            return F.interpolate(x, scale_factor=2.0, mode="linear")

    return Model(), lambda b, n: (noise(b, 4, n),)


@network([{0: "batch", 1: "length"}], (2, 64), (1, 100), (3, 81))
def spectrogram():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("window", torch.hann_window(16))
            self.mel = nn.Linear(9, 6)

        def forward(self, x):
            frames = F.pad(x, [8, 8]).unfold(1, 16, 4) * self.window
            at = torch.outer(torch.arange(9.0), torch.arange(16.0)) * (2 * torch.pi / 16)
            power = (frames @ at.cos().T) ** 2 + (frames @ at.sin().T) ** 2
            return torch.log(self.mel(power).relu() + 1e-3)

    return Model(), lambda b, n: (noise(b, n),)


@network([{0: "points"}, {0: "points"}], (12,), (5,), (20,))
def point_set():
    """Nearest neighbours among points, and a sum over edges."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.edge, self.out = nn.Linear(6, 8), nn.Linear(8, 4)

        def forward(self, points, weights):
            distance = torch.cdist(points, points)
            near = distance.topk(3, largest=False).indices
            pairs = torch.cat([points.unsqueeze(1).expand(-1, 3, -1), points[near]], -1)
            edges = F.relu(self.edge(pairs)) * weights[near].unsqueeze(-1)
            total = torch.zeros(points.shape[0], 8).index_add(0, near.flatten(), edges.flatten(0, 1))
            return self.out(total)

    return Model(), lambda n: (noise(n, 3), torch.rand(n))


@network([IMAGE], (2, 9, 14), (1, 8, 8), (3, 5, 7), (1, 1, 1))
def patches_of_a_map():
    """Patches of two by two of a map that is padded to whole ones, as MobileViT unfolds it: their number is computed in floats."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.mix = nn.Conv2d(3, 8, 3, 1, 1), nn.Linear(8, 8)

        def forward(self, x):
            x = self.conv(x)
            b, c, height, width = x.shape
            extent = lambda n: (torch.ceil(torch.as_tensor(n).float() / 2) * 2).long()  # noqa: E731
            tall, wide = extent(height), extent(width)
            x = F.pad(x, (0, wide - width, 0, tall - height))
            rows, columns = tall // 2, wide // 2
            x = x.reshape(b * c * rows, 2, columns, 2).transpose(1, 2)
            x = x.reshape(b, c, rows * columns, 4).transpose(1, 3)
            x = self.mix(x).relu()
            x = x.transpose(1, 3).reshape(b * c * rows, columns, 2, 2).transpose(1, 2)
            return x.reshape(b, c, tall, wide)[:, :, :height, :width]

    return Model(), picture


def exported(name, exporter, path):
    """Writes the model; returns the names of its inputs."""
    make, axes, sizes = NETWORKS[name]
    torch.manual_seed(0)
    model, inputs = make()
    model = model.eval()
    with torch.no_grad():
        for parameter in [*model.parameters(), *model.buffers()]:
            if parameter.is_floating_point() and parameter.ndim == 1:
                parameter.add_(0.1 * torch.rand_like(parameter))
    given = inputs(*sizes[0])
    names = [f"in{i}" for i in range(len(given))]
    if exporter == "script":
        torch.onnx.export(model, given, path, dynamo=False, opset_version=17, input_names=names, dynamic_axes=dict(zip(names, axes)))
    else:
        # AUTO: a size that the network does not allow to differ becomes a number.
        shapes = tuple({axis: torch.export.Dim.AUTO for axis in all} for all in axes)
        if isinstance(model, Picked):
            shapes = (shapes,)
        torch.onnx.export(model, given, path, dynamo=True, external_data=False, input_names=names, dynamic_shapes=shapes, verbose=False)
    return names, inputs, sizes


def record(name, exporter, folder, stem):
    path = folder / f"{stem}.onnx"
    names, inputs, sizes = exported(name, exporter, path)
    model = onnx.load(path)
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    del model.graph.value_info[:]
    del model.graph.metadata_props[:]
    onnx.save(model, path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    torch.manual_seed(1)
    calls, arrays = 0, {}
    present = [i.name for i in session.get_inputs()]
    for size in sizes:
        given = {n: v.numpy() for n, v in zip(names, inputs(*size)) if n in present}
        try:
            out = session.run(None, given)
        except Exception as e:
            print(f"    {stem} {size}: {str(e).splitlines()[0][:150]}")
            continue
        arrays.update({f"in.{calls}.{n}": v for n, v in given.items()})
        arrays.update({f"out.{calls}.{o.name}": v for o, v in zip(session.get_outputs(), out)})
        calls += 1
    np.savez_compressed(folder / f"{stem}.npz", **arrays)
    print(f"{stem}: {path.stat().st_size} B, {calls} calls", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--inside", action="store_true")
    parser.add_argument("--all", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    wanted = [(n, e, here / "exported", f"{n}_{e}") for n, e in KEPT]
    (given.all or here / "exported").mkdir(parents=True, exist_ok=True)
    if given.all:
        wanted = [(n, e, given.all, f"{n}_{e}") for n in NETWORKS if not given.names or n in given.names for e in ("script", "dynamo")]
    for name, exporter, folder, stem in wanted:
        try:
            record(name, exporter, folder, stem)
        except Exception as e:
            print(f"{stem}: not exported: {type(e).__name__} {str(e).splitlines()[0][:200] if str(e) else ''}", flush=True)
            if not given.all:
                traceback.print_exc()
                sys.exit(1)


if __name__ == "__main__":
    main()
