"""Small networks of the zoo that are in no library: each has something that a chain of layers has not by itself."""
from typing import Dict, List, Tuple

import torch
from torch import Tensor, nn


class Encoder(nn.Module):
    """Tokens through Python's own nn.TransformerEncoder."""

    def __init__(self, vocabulary=50, width=32, num_layers=3):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers)
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(tokens)))


class MaskedEncoder(Encoder):
    """The same with a causal mask, and with the padding as a second input."""

    def forward(self, tokens: Tensor, padding: Tensor) -> Tensor:
        length = tokens.size(1)
        ahead = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)
        hidden = self.encoder(self.embedding(tokens), mask=ahead, src_key_padding_mask=padding.gt(8))
        return self.head(hidden)


class Tagger(nn.Module):
    """A tag for each word, by an LSTM in both directions."""

    def __init__(self, vocabulary=50, width=24):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True, dropout=0.2, bidirectional=True)
        self.tags = nn.Linear(2 * width, 10)

    def forward(self, words: Tensor) -> Tensor:
        hidden, (state, cell) = self.lstm(self.embedding(words))
        return self.tags(hidden) + cell[-1].mean(1)[:, None, None]


class DoubleConv(nn.Module):
    def __init__(self, num_inputs, num_outputs):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(num_inputs, num_outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(num_outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(num_outputs, num_outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(num_outputs),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class UNet(nn.Module):
    """Skips from each depth of the way down to the same one of the way up."""

    def __init__(self, width=8, depth=3):
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.down = nn.ModuleList(
            [DoubleConv(3 if level == 0 else widths[level - 1], widths[level]) for level in range(depth)]
        )
        self.bottom = DoubleConv(widths[depth - 1], widths[depth])
        self.up = nn.ModuleList(
            [nn.ConvTranspose2d(widths[level + 1], widths[level], 2, stride=2) for level in reversed(range(depth))]
        )
        self.merge = nn.ModuleList([DoubleConv(2 * widths[level], widths[level]) for level in reversed(range(depth))])
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips: List[Tensor] = []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.bottom(x)
        for index, (up, merge) in enumerate(zip(self.up, self.merge)):
            x = merge(torch.cat([skips[len(skips) - 1 - index], up(x)], dim=1))
        return self.head(x)


class ControlFlow(nn.Module):
    """How many layers run, and which, depends on the data; what they give is gathered in a list."""

    def __init__(self, width=16):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.again = nn.Linear(width, width)
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(4)])
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(width, 10)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        kept: List[Tensor] = []
        x = torch.tanh(self.first(x))
        steps = 1 + int(x.abs().sum().item()) % 3
        for _ in range(steps):
            x = torch.tanh(self.again(x))
            kept.append(x)
        if self.training:
            x = self.dropout(x) * 2
            self.calls.add_(1)
        if x.sum() > 0:
            x = x + 1
        for layer in self.layers:
            x = torch.relu(layer(x))
            kept.append(x)
        return self.head(torch.stack(kept).sum(0))


class SharedModules(nn.Module):
    """One linear layer and one batch norm that run twice each, and an embedding whose weight is the head's, too."""

    def __init__(self, vocabulary=40, width=24):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.shared = nn.Linear(width, width)
        self.between = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(torch.tanh(self.shared(self.embedding(tokens))))
        x = torch.relu(self.between(x))
        x = self.norm(x + torch.tanh(self.shared(x)))
        return self.head(x)


class SharedOften(nn.Module):
    """One linear layer that runs nine times."""

    def __init__(self, width=16):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(9):
            x = torch.tanh(self.linear(x))
        return self.head(x)


class Structured(nn.Module):
    """Takes a tuple and a dictionary, hands dictionaries and tuples on, and returns one of each."""

    def __init__(self, width=16):
        super().__init__()
        self.left = nn.Linear(width, width)
        self.right = nn.Linear(width, width)
        self.gate = nn.Linear(width, width)
        self.mix = nn.Linear(2 * width, width)
        self.head = nn.Linear(width, 10)
        self.dropout = nn.Dropout(0.1)

    def forward(self, pair: Tuple[Tensor, Tensor], features: Dict[str, Tensor]) -> Tuple[Tensor, Dict[str, Tensor]]:
        left, right = pair
        hidden = {"left": torch.tanh(self.left(left)), "right": torch.tanh(self.right(right))}
        hidden["gate"] = torch.sigmoid(self.gate(features["gate"]))
        mixed = self.dropout(self.mix(torch.cat([hidden["left"], hidden["right"]], 1))) * hidden["gate"]
        scale = features["scale"].abs() + 1
        return self.head(torch.relu(mixed)) * scale, {"mixed": mixed, "left": hidden["left"]}


class InPlace(nn.Module):
    """Writes into tensors of which it still has views, and computes a part without gradients."""

    def __init__(self, width=16):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        self.third = nn.Linear(width, width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        view = y.view(-1, 4, 4)
        w = torch.sigmoid(self.second(x))
        y.add_(w)
        z = w * 3
        y[:, 0] = z[:, 1]
        z = z + torch.tanh(z)
        y.relu_()
        with torch.no_grad():
            norm = torch.tanh(y.abs().mean(1, keepdim=True))
        z = torch.relu(self.third(z + view.flatten(1))) / (norm + 1)
        return self.head(z + y)
