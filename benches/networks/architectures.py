"""Architectures that export.py writes and neither torchvision nor transformers has, small enough to be read.

Each is named for the paper that it follows in its shape, not in its sizes.
"""

import torch
from torch import nn
from torch.nn import functional


class UNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        channels = [width << k for k in range(4)]
        ends = zip([3, *channels], channels)
        self.down = nn.ModuleList(UNet.pair(a, b) for a, b in ends)
        back = list(zip(channels[:0:-1], channels[-2::-1]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in back)
        self.join = nn.ModuleList(UNet.pair(2 * b, b) for _, b in back)
        self.last = nn.Conv2d(width, 4, 1)

    @staticmethod
    def pair(a, b):
        layers = [[nn.Conv2d(i, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()] for i in (a, b)]
        return nn.Sequential(*layers[0], *layers[1])

    def forward(self, x):
        kept = []
        for layer in self.down[:-1]:
            kept.append(layer(x))
            x = nn.functional.max_pool2d(kept[-1], 2)
        x = self.down[-1](x)
        for up, join in zip(self.up, self.join):
            x = join(torch.cat([up(x), kept.pop()], 1))
        return self.last(x)


class Generator(nn.Module):
    """Images from noise (Radford, Metz and Chintala, 2015: DCGAN): transposed convolutions of 4x4 that step by two."""

    def __init__(self, channels=(100, 512, 256, 128, 64)):
        super().__init__()
        layers = []
        for k, (a, b) in enumerate(zip(channels, channels[1:])):
            step = (2, 1) if k else (1, 0)
            layers += [nn.ConvTranspose2d(a, b, 4, *step, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.ConvTranspose2d(channels[-1], 3, 4, 2, 1), nn.Tanh())

    def forward(self, x):
        return self.layers(x)


class StyleTransfer(nn.Module):
    """Images from images (Johnson, Alahi and Fei-Fei, 2016): reflected padding, instance norms, transposed convolutions of 3x3."""

    def __init__(self, width=32, blocks=3):
        super().__init__()
        norm = lambda n: nn.InstanceNorm2d(n, affine=True)
        layers = [nn.ReflectionPad2d(3), nn.Conv2d(3, width, 7), norm(width), nn.ReLU()]
        for n in (width, 2 * width):
            layers += [nn.Conv2d(n, 2 * n, 3, 2, 1), norm(2 * n), nn.ReLU()]
        self.down = nn.Sequential(*layers)
        n = 4 * width
        same = lambda: [nn.ReflectionPad2d(1), nn.Conv2d(n, n, 3), norm(n)]
        self.blocks = nn.ModuleList(nn.Sequential(*same(), nn.ReLU(), *same()) for _ in range(blocks))
        layers = []
        for n in (4 * width, 2 * width):
            layers += [nn.ConvTranspose2d(n, n // 2, 3, 2, 1, 1), norm(n // 2), nn.ReLU()]
        self.up = nn.Sequential(*layers, nn.ReflectionPad2d(3), nn.Conv2d(width, 3, 7), nn.Tanh())

    def forward(self, x):
        x = self.down(x)
        for block in self.blocks:
            x = x + block(x)
        return self.up(x)


class Vocoder(nn.Module):
    """Sound from spectra (Kong, Kim and Bae, 2020: HiFi-GAN): transposed and dilated convolutions along time."""

    def __init__(self, channels=128):
        super().__init__()
        self.first, self.up, self.blocks, n = nn.Conv1d(80, channels, 7, padding=3), nn.ModuleList(), nn.ModuleList(), channels
        for step, size in ((8, 16), (8, 16), (2, 4), (2, 4)):
            self.up.append(nn.ConvTranspose1d(n, n // 2, size, step, (size - step) // 2))
            n //= 2
            convolution = lambda size, dilation: nn.Conv1d(n, n, size, dilation=dilation, padding=(size - 1) * dilation // 2)
            self.blocks.append(nn.ModuleList(nn.ModuleList([convolution(k, d), convolution(k, 1)]) for k in (3, 7) for d in (1, 3)))
        self.last = nn.Conv1d(n, 1, 7, padding=3)

    def forward(self, x):
        x = self.first(x)
        for up, blocks in zip(self.up, self.blocks):
            x = up(functional.leaky_relu(x, 0.1))
            for first, second in blocks:
                x = x + second(functional.leaky_relu(first(functional.leaky_relu(x, 0.1)), 0.1))
        return torch.tanh(self.last(functional.leaky_relu(x)))


class Recognizer(nn.Module):
    """Letters from a line of text (Shi, Bai and Yao, 2015: CRNN): convolutions, then an LSTM that goes both ways."""

    def __init__(self):
        super().__init__()
        layers = []
        for a, b, pool in ((1, 32, 2), (32, 64, 2), (64, 128, (2, 1))):
            layers += [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(pool)]
        self.image = nn.Sequential(*layers, nn.Conv2d(128, 128, (4, 1)), nn.ReLU())
        self.letters, self.last = nn.LSTM(128, 128, bidirectional=True), nn.Linear(256, 80)

    def forward(self, x):
        columns = self.image(x).squeeze(2).permute(2, 0, 1)
        return self.last(self.letters(columns)[0]).log_softmax(2)


class Scan(nn.Module):
    """A gated mean of all tokens before, behind a short convolution, as in blocks of state spaces (Gu and Dao, 2023: Mamba)."""

    def __init__(self, width=128):
        super().__init__()
        self.first, self.last = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)
        self.short = nn.Conv1d(2 * width, 2 * width, 4, padding=3, groups=2 * width)

    def forward(self, x):
        x, gate = self.first(x).chunk(2, -1)
        x = functional.silu(self.short(x.transpose(1, 2))[:, :, : x.shape[1]]).transpose(1, 2)
        weight = torch.sigmoid(x)
        mean = torch.cumsum(x * weight, 1) / torch.cumsum(weight + 1e-3, 1)
        return self.last(mean * functional.silu(gate))


class SelectiveKernels(nn.Module):
    """Residual blocks that weigh two convolutions of each, one dilated, by what both add up to (Li et al., 2019)."""

    class Block(nn.Module):
        def __init__(self, channels):
            super().__init__()
            paths = [nn.Sequential(nn.Conv2d(channels, channels, 3, padding=d, dilation=d), nn.BatchNorm2d(channels), nn.ReLU()) for d in (1, 2)]
            self.paths = nn.ModuleList(paths)
            self.weigh = nn.Sequential(nn.Conv2d(channels, channels // 8, 1), nn.ReLU(), nn.Conv2d(channels // 8, 2 * channels, 1))

        def forward(self, x):
            both = torch.stack([path(x) for path in self.paths], 1)
            shares = self.weigh(both.sum(1).mean((2, 3), keepdim=True))
            shares = shares.view(x.shape[0], 2, x.shape[1], 1, 1).softmax(1)
            return x + (both * shares).sum(1)

    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), self.Block(64), self.Block(64)]
        layers += [nn.Conv2d(64, 128, 3, 2, 1), nn.ReLU(), self.Block(128), self.Block(128)]
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 100))

    def forward(self, x):
        return self.layers(x)


class GatedConvolutions(nn.Module):
    """Blocks of pixels whose channels come last, a part of which goes through a depthwise convolution (Yu and Wang, "MambaOut", 2024)."""

    class Block(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.norm, self.into = nn.LayerNorm(channels), nn.Linear(channels, 4 * channels)
            self.along = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
            self.out = nn.Linear(2 * channels, channels)

        def forward(self, x):
            channels = x.shape[-1]
            gate, rest, along = self.into(self.norm(x)).split((2 * channels, channels, channels), -1)
            along = self.along(along.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
            return x + self.out(nn.functional.gelu(gate) * torch.cat((rest, along), -1))

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 3, 2, 1)
        self.norm, self.next = nn.LayerNorm(24), nn.Conv2d(24, 64, 3, 2, 1)
        self.blocks = nn.Sequential(*[self.Block(64) for _ in range(4)])
        self.head = nn.Linear(64, 100)

    def forward(self, x):
        x = self.norm(self.stem(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        x = self.next(nn.functional.gelu(x)).permute(0, 2, 3, 1)
        return self.head(self.blocks(x).mean((1, 2)))
