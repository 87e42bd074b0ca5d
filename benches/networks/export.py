"""Exports networks at their published sizes, with random weights, as ONNX files that run.py times.

python3 benches/networks/export.py FOLDER [NAME...]

Writes NAME.onnx with fixed sizes, NAME_sym.onnx with symbolic ones where the exporter allows them, and NAME.npz with inputs; of a few networks
also NAME_qdq.onnx, quantized to bytes by ONNX Runtime. Needs torch, torchvision, transformers, onnx and, to quantize, onnxruntime; nothing is
downloaded, for weights are random. What an exporter does not know is named and left out.
"""

import pathlib
import sys
import tempfile
import warnings

import numpy as np
import torch
import torchvision.models as vision
import transformers
from torch import nn

from architectures import GatedConvolutions, Generator, Recognizer, Scan, SelectiveKernels, StyleTransfer, UNet, Vocoder

warnings.filterwarnings("ignore")
torch.backends.mha.set_fastpath_enabled(False)

IMAGE = {0: "batch", 2: "height", 3: "width"}
BATCH = {0: "batch"}
TOKENS = {0: "batch", 1: "length"}
# Of torchvision: the side of the image, and the axes that may be symbolic.
VISION = {
    "alexnet": (224, BATCH),
    "convnext_tiny": (224, IMAGE),
    "densenet121": (224, IMAGE),
    "efficientnet_b0": (224, IMAGE),
    "googlenet": (224, IMAGE),
    "inception_v3": (299, IMAGE),
    "maxvit_t": (224, BATCH),
    "mnasnet1_0": (224, IMAGE),
    "mobilenet_v2": (224, IMAGE),
    "mobilenet_v3_large": (224, IMAGE),
    "mobilenet_v3_small": (224, IMAGE),
    "regnet_x_1_6gf": (224, IMAGE),
    "regnet_y_400mf": (224, IMAGE),
    "resnet18": (224, IMAGE),
    "resnet50": (224, IMAGE),
    "resnext50_32x4d": (224, IMAGE),
    "shufflenet_v2_x1_0": (224, IMAGE),
    "squeezenet1_1": (224, IMAGE),
    "swin_t": (224, BATCH),
    "vgg11": (224, BATCH),
    "vit_b_16": (224, BATCH),
}


class Called(nn.Module):
    """A model that is called by a function of it and its inputs."""

    def __init__(self, model, call):
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *inputs):
        return self.call(self.model, *inputs)


def small_cnn(batch):
    layers = [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10))
    return model, (torch.randn(batch, 1, 28, 28),), BATCH


def perceptron(batch):
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    return model, (torch.randn(batch, 784),), BATCH


def lstm(length, batch):
    model = Called(nn.LSTM(128, 256, 2), lambda m, x: m(x)[0])
    return model, (torch.randn(length, batch, 128),), {0: "length", 1: "batch"}


def segmentation(name, side, **more):
    model = getattr(vision.segmentation, name)(weights=None, weights_backbone=None, **more)
    return Called(model, lambda m, x: m(x)["out"]), (torch.randn(1, 3, side, side),), IMAGE


def detection(name, side, **more):
    """Boxes of what is seen in an image, as many as there are. The least scores are those of which untrained weights give some."""
    model = getattr(vision.detection, name)(weights=None, weights_backbone=None, **more)
    call = lambda m, x: tuple(m([x])[0][k] for k in ("boxes", "labels", "scores"))
    return Called(model, call), (torch.rand(3, side, side),), None


def torchvision_model(name):
    side, axes = VISION[name]
    more = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    return getattr(vision, name)(weights=None, **more), (torch.randn(1, 3, side, side),), axes


def decoding(kind, past, batch=1):
    """One step of a decoder with a cache of so many tokens; the new keys and values are outputs."""
    if kind == "gpt2":
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(attn_implementation="eager"))
        layers, heads, features, words = 12, 12, 64, 50257
    else:
        layers, heads, features, words = 8, 4, 64, 32000
        config = transformers.LlamaConfig(
            hidden_size=1024,
            intermediate_size=2816,
            num_hidden_layers=layers,
            num_attention_heads=16,
            num_key_value_heads=heads,
            vocab_size=words,
            attn_implementation="eager",
        )
        model = transformers.LlamaForCausalLM(config)

    def step(model, tokens, *cached):
        cache = transformers.cache_utils.DynamicCache()
        for k in range(layers):
            cache.update(cached[2 * k], cached[2 * k + 1], k)
        at = torch.arange(past, past + 1)[None]
        out = model(input_ids=tokens, past_key_values=cache, position_ids=at, use_cache=True)
        new = [t[:, :, -1:] for layer in out.past_key_values.layers for t in (layer.keys, layer.values)]
        return (out.logits, *new)

    cached = [torch.randn(batch, heads, past, features) for _ in range(2 * layers)]
    return Called(model, step), (torch.randint(0, words, (batch, 1)), *cached), None


def video(name, frames, side):
    return getattr(vision.video, name)(weights=None), (torch.randn(1, 3, frames, side, side),), BATCH


def encoder(kind):
    if kind == "bert":
        config = transformers.BertConfig(
            hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, attn_implementation="eager"
        )
        model = transformers.BertModel(config)
    else:
        model = transformers.DistilBertModel(transformers.DistilBertConfig(attn_implementation="eager"))
    call = lambda m, tokens: m(input_ids=tokens, return_dict=False)[0]
    return Called(model, call), (torch.randint(0, 30000, (1, 128)),), TOKENS


def image_transformer(kind):
    """Encoders of tokens that are seen as an image, and of images that are seen as tokens."""
    if kind == "segformer":
        model, side = transformers.SegformerForSemanticSegmentation(transformers.SegformerConfig(attn_implementation="eager")), 224
        call = lambda m, x: m(pixel_values=x).logits
    elif kind == "depth":
        sizes = dict(image_size=224, hidden_size=192, num_hidden_layers=4, num_attention_heads=3, intermediate_size=768)
        neck = dict(backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[48, 96, 192, 384], fusion_hidden_size=64)
        model, side = transformers.DPTForDepthEstimation(transformers.DPTConfig(**sizes, **neck, attn_implementation="eager")), 224
        call = lambda m, x: m(pixel_values=x).predicted_depth
    else:
        sizes = dict(image_size=256, hidden_size=192, num_hidden_layers=4, num_attention_heads=3, intermediate_size=768)
        model, side = transformers.SamVisionModel(transformers.SamVisionConfig(**sizes, global_attn_indexes=[3], attn_implementation="eager")), 256
        call = lambda m, x: m(pixel_values=x)[0]
    return Called(model, call), (torch.randn(1, 3, side, side),), BATCH


def speech():
    """An encoder whose convolutions have a norm over their channels between each two."""
    sizes = dict(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024)
    model = transformers.Data2VecAudioModel(transformers.Data2VecAudioConfig(**sizes, attn_implementation="eager"))
    return Called(model, lambda m, x: m(input_values=x)[0]), (torch.randn(1, 16000),), None


NETWORKS = {name: (torchvision_model, name) for name in VISION} | {
    "deeplab_mobilenet": (segmentation, "deeplabv3_mobilenet_v3_large", 224),
    "deeplab_resnet50": (segmentation, "deeplabv3_resnet50", 128),
    "lraspp": (segmentation, "lraspp_mobilenet_v3_large", 224),
    "ssdlite": (detection, "ssdlite320_mobilenet_v3_large", 320),
    "ssd300": (detection, "ssd300_vgg16", 300),
    "fcos": (lambda: detection("fcos_resnet50_fpn", 320, score_thresh=0.08, min_size=320, max_size=480),),
    "faster_rcnn": (lambda: detection("fasterrcnn_mobilenet_v3_large_320_fpn", 320, box_score_thresh=0.005),),
    "unet": (lambda: (UNet(), (torch.randn(1, 3, 128, 128),), IMAGE),),
    "generator": (lambda: (Generator(), (torch.randn(1, 100, 1, 1),), BATCH),),
    "style_transfer": (lambda: (StyleTransfer(), (torch.randn(1, 3, 128, 128),), IMAGE),),
    "vocoder": (lambda: (Vocoder(), (torch.randn(1, 80, 40),), {0: "batch", 2: "frames"}),),
    "recognizer": (lambda: (Recognizer(), (torch.randn(1, 1, 32, 128),), BATCH),),
    "scan": (lambda: (Scan(), (torch.randn(1, 256, 128),), TOKENS),),
    "selective_kernels": (lambda: (SelectiveKernels(), (torch.randn(1, 3, 112, 112),), IMAGE),),
    "gated_convolutions": (lambda: (GatedConvolutions(), (torch.randn(1, 3, 160, 160),), IMAGE),),
    "segformer": (image_transformer, "segformer"),
    "depth": (image_transformer, "depth"),
    "sam_vision": (image_transformer, "sam_vision"),
    "data2vec_audio": (speech,),
    "r3d_18": (video, "r3d_18", 8, 56),
    "s3d": (video, "s3d", 16, 224),
    "small_cnn": (small_cnn, 1),
    "small_cnn_b16": (small_cnn, 16),
    "mlp": (perceptron, 1),
    "mlp_b64": (perceptron, 64),
    "lstm": (lstm, 64, 1),
    "lstm_b16": (lstm, 32, 16),
    "bert_mini": (encoder, "bert"),
    "distilbert": (encoder, "distilbert"),
    "gpt2_decode64": (decoding, "gpt2", 64),
    "gpt2_decode1000": (decoding, "gpt2", 1000),
    "llama_decode64": (decoding, "llama", 64),
    "llama_decode1024": (decoding, "llama", 1024),
    "llama_decode64_b16": (decoding, "llama", 64, 16),
}

# Those that are written in bytes as well.
QUANTIZED = ("resnet18", "mobilenet_v2", "bert_mini")


def export(folder, name, symbolic):
    torch.manual_seed(0)
    make, *arguments = NETWORKS[name]
    model, inputs, axes = make(*arguments)
    if symbolic and axes is None:
        return
    model.eval()
    names = [f"x{k}" for k in range(len(inputs))]
    path = folder / f"{name}{'_sym' if symbolic else ''}.onnx"
    dynamic = {n: axes for n in names} if symbolic else None
    try:
        with torch.no_grad():
            torch.onnx.export(model, inputs, str(path), input_names=names, dynamic_axes=dynamic, dynamo=False, opset_version=17)
    except Exception as error:  # noqa: BLE001: whatever the exporter lacks
        path.unlink(missing_ok=True)
        print(f"left out {path.stem}: {str(error).splitlines()[-1][:160]}", flush=True)
        return
    np.savez(folder / f"{name}.npz", **{n: a.numpy() for n, a in zip(names, inputs)})
    print(path, flush=True)


class Once:
    """The inputs of a network, once, to take the ranges of values from."""

    def __init__(self, inputs):
        self.left = [inputs]

    def get_next(self):
        return self.left.pop() if self.left else None


def quantize(folder, name):
    """Float operators between operators that make floats of bytes: u8 activations, s8 weights with a scale for each channel."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    path, inputs = folder / f"{name}_qdq.onnx", dict(np.load(folder / f"{name}.npz"))
    with tempfile.TemporaryDirectory() as scratch:
        prepared = f"{scratch}/prepared.onnx"
        quant_pre_process(str(folder / f"{name}.onnx"), prepared, skip_symbolic_shape=True)
        types = dict(activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8)
        quantize_static(prepared, str(path), Once(inputs), quant_format=QuantFormat.QDQ, per_channel=True, **types)
    print(path, flush=True)


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or NETWORKS:
        for symbolic in (False, True):
            export(folder, name, symbolic)
        if name in QUANTIZED:
            quantize(folder, name)


if __name__ == "__main__":
    main()
