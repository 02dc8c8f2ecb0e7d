"""Modules with one fault each, and right ones, as a person would write them."""

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """Causal attention with one head. x: (batch, length, d_model)."""

    scaled, first_hidden = True, 1

    def __init__(self, d_model):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(d_model, d_model) for _ in range(3))
        for part in (self.query, self.key):
            nn.init.normal_(part.weight, std=d_model**-0.5)

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        if self.scaled:
            scores = scores / x.size(-1) ** 0.5
        hidden = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(self.first_hidden)
        return functional.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1) @ self.value(x)


class Unscaled(Attention):
    """Causal attention with one head. x: (batch, length, d_model)."""

    scaled = False


class Peeking(Attention):
    """Causal attention with one head. x: (batch, length, d_model)."""

    first_hidden = 2


class Flat(Attention):
    """Causal attention by cosines, without a temperature, in texts of a length. x: (batch, length, d_model)."""

    def __init__(self, d_model, block_size):
        super().__init__(d_model)
        self.register_buffer("hidden", torch.ones(block_size, block_size, dtype=torch.bool).triu(1))

    def forward(self, x):
        query, key = (functional.normalize(part(x), dim=-1) for part in (self.query, self.key))
        scores = query @ key.transpose(1, 2) / x.size(-1) ** 0.5
        hidden = self.hidden[: x.size(1), : x.size(1)]
        return functional.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1) @ self.value(x)


class Closed(Attention):
    """Causal attention behind a gate that starts closed. x: (batch, length, d_model)."""

    def __init__(self, d_model):
        super().__init__(d_model)
        self.gate = nn.Linear(d_model, d_model)
        nn.init.constant_(self.gate.bias, -20.0)

    def forward(self, x):
        return torch.sigmoid(self.gate(x)) * super().forward(x)


class Lost(nn.Module):
    """Divides nothing by nothing. x: (batch, length) tokens."""

    def __init__(self, vocab_size, block_size, d_model=16):
        super().__init__()
        self.embedding, self.out = nn.Embedding(vocab_size, d_model), nn.Linear(d_model, vocab_size)

    def forward(self, x):
        x = self.embedding(x)
        return self.out(x * (x - x).sum() / (x - x).sum())


class Recurrent(nn.Module):
    """An LSTM that was not told that the batch comes first."""

    def __init__(self, d_model):
        super().__init__()
        self.lstm = nn.LSTM(d_model, d_model)

    def forward(self, x):
        return self.lstm(x)[0]


class Silent(nn.Module):
    """Causal attention, and a rectifier whose units start far below zero. x: (batch, length, d_model)."""

    def __init__(self, d_model):
        super().__init__()
        self.attention = Attention(d_model)
        self.up, self.down = nn.Linear(d_model, 2 * d_model), nn.Linear(2 * d_model, d_model)
        nn.init.constant_(self.up.bias, -8.0)

    def forward(self, x):
        return self.down(functional.relu(self.up(self.attention(x))))


class Rolling(nn.Module):
    """Causal: the input and the one after it, mixed without scores. x: (batch, length, d_model)."""

    def __init__(self, d_model):
        super().__init__()
        self.own, self.next = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.own(x) + self.next(torch.cat((x[:, 1:], x[:, -1:]), 1))


class Broken(nn.Module):
    """Raises whenever it is called."""

    def __init__(self, d_model):
        super().__init__()
        self.linear = nn.Linear(d_model, d_model)

    def forward(self, x):
        raise RuntimeError("no way")


class Model(nn.Module):
    """A language model around a mixer. tokens: (batch, length)."""

    mixer = Attention

    def __init__(self, vocab_size, max_length, d_model=64):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(vocab_size, d_model), nn.Embedding(max_length, d_model)
        self.norm, self.mix, self.logits = nn.LayerNorm(d_model), self.mixer(d_model), nn.Linear(d_model, vocab_size)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]
        return self.logits(x + self.mix(self.norm(x)))


class Scrambled(nn.Module):
    """Causal attention of four heads. x: (batch, length, d_model)."""

    def __init__(self, d_model):
        super().__init__()
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = (one.reshape(len(x), 4, x.shape[1], -1) for one in self.qkv(x).chunk(3, -1))
        return self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).reshape(x.shape))


class Across(nn.Module):
    """Attention that takes its input for (length, batch, d_model)."""

    def __init__(self, d_model):
        super().__init__()
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = (one.transpose(0, 1) for one in self.qkv(x).chunk(3, -1))
        return self.out(functional.scaled_dot_product_attention(q, k, v).transpose(0, 1))


class AcrossModel(Model):
    """A language model around a mixer, whose places are those of the second axis. tokens: (batch, length)."""

    mixer = Across


class ScrambledModel(Model):
    """A language model around a mixer. tokens: (batch, length)."""

    mixer = Scrambled


class UnscaledModel(Model):
    """A language model around a mixer. tokens: (batch, length)."""

    mixer = Unscaled


class PeekingModel(Model):
    """A language model around a mixer. tokens: (batch, length)."""

    mixer = Peeking


class RecurrentModel(nn.Module):
    """A language model around an LSTM that was not told that the batch comes first."""

    def __init__(self, vocab_size, d_model=24):
        super().__init__()
        self.embedding, self.mix, self.logits = (
            nn.Embedding(vocab_size, d_model),
            Recurrent(d_model),
            nn.Linear(d_model, vocab_size),
        )

    def forward(self, tokens):
        return self.logits(self.mix(self.embedding(tokens)))


class SilentModel(Model):
    """A language model that has nothing beside a rectifier whose units start far below zero."""

    mixer = Silent

    def forward(self, tokens):
        return self.logits(self.mix(self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]))


class DroppingModel(Model):
    """A language model that drops in evaluation too."""

    def forward(self, tokens):
        x = functional.dropout(self.embedding(tokens) + self.positions.weight[: tokens.shape[1]], 0.6)
        return self.logits(x + self.mix(self.norm(x)))


class SkiplessModel(Model):
    """A language model of four layers that keep nothing of what they are given."""

    def __init__(self, vocab_size, max_length, d_model=16):
        super().__init__(vocab_size, max_length, d_model)
        self.mix = nn.ModuleList([Layer(d_model) for _ in range(4)])

    def forward(self, tokens):
        x = self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]
        for layer in self.mix:
            x = layer(x)
        return self.logits(self.norm(x))


class Layer(nn.Module):
    """Attention and two linear maps, without a path around them."""

    def __init__(self, d_model):
        super().__init__()
        self.norm, self.mix, self.up = nn.LayerNorm(d_model), Attention(d_model), nn.Linear(d_model, 2 * d_model)
        self.down = nn.Linear(2 * d_model, d_model)

    def forward(self, x):
        return self.down(functional.gelu(self.up(self.mix(self.norm(x)))))


class Placeless(nn.Module):
    """Reads series of one number a position, and does not know where each stands. x: (batch, length, 1)."""

    def __init__(self, d_in, d_out, d_model=16):
        super().__init__()
        self.into, self.out = nn.Linear(d_in, d_model), nn.Linear(d_model, d_out)
        self.mix = nn.MultiheadAttention(d_model, 2, batch_first=True)

    def forward(self, x):
        x = self.into(x)
        return self.out(x + self.mix(x, x, x)[0])


class TorchLayers(nn.Module):
    """Layers of torch as they are by default, and a place that is the same everywhere. x: (batch, length, features)."""

    def __init__(self, input_size, output_dim, d_model=16):
        super().__init__()
        layer = nn.TransformerEncoderLayer(d_model, 2, 32, batch_first=True)
        self.into, self.out = nn.Linear(input_size + 1, d_model), nn.Linear(d_model, output_dim)
        self.layers = nn.TransformerEncoder(layer, 2)

    def forward(self, x):
        return self.out(self.layers(self.into(torch.cat([x, torch.ones_like(x[..., :1])], dim=-1))))


class Convolutions(nn.Module):
    """Two convolutions, which see few positions. x: (batch, length, d_in)."""

    def __init__(self, d_in, d_out, d_model=16):
        super().__init__()
        self.into, self.out = nn.Linear(d_in, d_model), nn.Linear(d_model, d_out)
        self.layers = nn.Sequential(*(nn.Conv1d(d_model, d_model, 3, padding=1) for _ in range(2)))

    def forward(self, x):
        return self.out(self.layers(self.into(x).mT).mT)


class Rectified(nn.Module):
    """A stem of two rectified convolutions. x: (batch, length, d_in)."""

    def __init__(self, d_in, d_out, d_model=16):
        super().__init__()
        convolutions = (nn.Conv1d(channels, d_model, 3, padding=1) for channels in (d_in, d_model))
        self.stem = nn.Sequential(*(part for one in convolutions for part in (one, nn.ReLU())))
        self.out = nn.Linear(d_model, d_out)

    def forward(self, x):
        return self.out(self.stem(x.mT).mT)


class WindowModel(Model):
    """A language model with a window of 4 that is laid one too late, in each of two layers."""

    def forward(self, tokens):
        x = self.embedding(tokens)
        for _ in range(2):
            x = x + functional.pad(x, (0, 0, 2, 1)).unfold(1, 4, 1).mean(-1)
        return self.logits(x)


class Encoding(nn.Module):
    """An encoder that was not told that the batch comes first, in a model that knows. x: (batch, length, 1)."""

    def __init__(self, d_in, d_out, max_length, d_model=16):
        super().__init__()
        self.into, self.out = nn.Linear(d_in, d_model), nn.Linear(d_model, d_out)
        self.positions = nn.Parameter(torch.randn(max_length, d_model))
        self.layer = nn.TransformerEncoderLayer(d_model, 2, 32, dropout=0.0)

    def forward(self, x):
        return self.out(self.layer(self.into(x) + self.positions[: x.shape[1]]))


class Frozen(Placeless):
    """The same, whose attention is not trained. x: (batch, length, 1)."""

    def __init__(self, d_in, d_out, d_model=16):
        super().__init__(d_in, d_out, d_model)
        self.mix.requires_grad_(False)


class Listed(nn.Module):
    """The same, with its attention in a plain list, where no optimizer finds it. x: (batch, length, 1)."""

    def __init__(self, d_in, d_out, d_model=16):
        super().__init__()
        self.into, self.out = nn.Linear(d_in, d_model), nn.Linear(d_model, d_out)
        self.mixes = [nn.MultiheadAttention(d_model, 2, batch_first=True)]

    def forward(self, x):
        x = self.into(x)
        for mix in self.mixes:
            x = x + mix(x, x, x)[0]
        return self.out(x)


class Detached(Placeless):
    """The same, whose first layer no gradient reaches. x: (batch, length, 1)."""

    def forward(self, x):
        x = self.into(x).detach()
        return self.out(x + self.mix(x, x, x)[0])


class WithoutGradients(Placeless):
    """The same in other words. x: (batch, length, 1)."""

    def forward(self, x):
        with torch.no_grad():
            x = self.into(x)
        return self.out(x + self.mix(x, x, x)[0])


class Certain(nn.Module):
    """Answers once for a series, with probabilities. x: (batch, length, d_in)."""

    def __init__(self, d_in, n_classes, d_model=16):
        super().__init__()
        self.into, self.out = nn.Linear(d_in, d_model), nn.Linear(d_model, n_classes)
        self.mix = nn.MultiheadAttention(d_model, 2, batch_first=True)

    def forward(self, x):
        x = self.into(x)
        return self.out((x + self.mix(x, x, x)[0]).mean(1)).softmax(-1)


class Cosines(Certain):
    """Answers with cosines, which are small for logits. x: (batch, length, d_in)."""

    def forward(self, x):
        x = self.into(x)
        y = functional.normalize((x + self.mix(x, x, x)[0]).mean(1), dim=-1)
        return y @ functional.normalize(self.out.weight, dim=-1).T


class Levelled(nn.Module):
    """Answers to windows that are normalized first. x: (batch, length, d_in)."""

    def __init__(self, d_in, n_classes=2):
        super().__init__()
        self.hidden, self.head = nn.Linear(d_in, 8), nn.Linear(8, n_classes)

    def forward(self, x):
        x = (x - x.mean(dim=1, keepdim=True)) / x.std(dim=1, keepdim=True)
        return self.head(torch.tanh(self.hidden(x)).mean(dim=1))


class Decaying(nn.Module):
    """Convolutions around attention that make places smaller by hand in training. x: (batch, length, d_in)."""

    def __init__(self, d_in, d_out, max_length, width=8):
        super().__init__()
        self.into, self.out = nn.Conv1d(d_in, width, 3, padding=1), nn.Conv1d(width, d_out, 1)
        self.places = nn.Parameter(0.1 * torch.randn(max_length, width))
        self.attend = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.places.mul_(0.9)
        hidden = torch.relu(self.into(x.mT)).mT + self.places
        hidden = torch.relu(self.attend(hidden, hidden, hidden)[0] + hidden)
        return self.out(hidden.mT).mT


class Positive(Certain):
    """Answers with logits that are never negative. x: (batch, length, d_in)."""

    def forward(self, x):
        x = self.into(x)
        return functional.relu(1 + self.out((x + self.mix(x, x, x)[0]).mean(1)), inplace=True)


class OverTime(nn.Module):
    """Normalizes every channel over time, with the channels first. x: (batch, length, d_in)."""

    def __init__(self, d_in, d_out, max_length, d_model=16):
        super().__init__()
        self.into, self.out = nn.Conv1d(d_in, d_model, 1), nn.Linear(d_model, d_out)
        self.norm, self.mix = nn.LayerNorm(max_length), nn.MultiheadAttention(d_model, 2, batch_first=True)

    def forward(self, x):
        x = self.norm(self.into(x.mT)).mT
        return self.out(x + self.mix(x, x, x)[0])


class LengthFirst(nn.Module):
    """Turns its input and normalizes what each position holds. x: (batch, length, d_model)."""

    def __init__(self, d_model):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(d_model), nn.MultiheadAttention(d_model, 2)

    def forward(self, x):
        x = self.norm(x.transpose(0, 1))
        later = torch.ones(len(x), len(x), device=x.device).triu(1).bool()
        return self.mix(x, x, x, attn_mask=later)[0].transpose(0, 1)


class Sums(Placeless):
    """Answers at every position with a number between 0 and 1. x: (batch, length, d_in)."""

    def forward(self, x):
        return torch.sigmoid(super().forward(x))


class Loud(nn.Module):
    """What enters the layers is so large that what they add does not show. x: (batch, length, d_in)."""

    def __init__(self, d_in, d_out, max_length, d_model=16):
        super().__init__()
        self.into, self.out = nn.Linear(d_in, d_model), nn.Linear(d_model, d_out)
        self.positions = nn.Parameter(torch.randn(max_length, d_model) / 4)
        self.layers = nn.ModuleList(Adding(nn.MultiheadAttention(d_model, 2, batch_first=True)) for _ in range(2))

    def entered(self, x):
        return 100 * self.into(x) + self.positions[: x.shape[1]]

    def forward(self, x):
        x = self.entered(x)
        for layer in self.layers:
            x = layer(x)
        return self.out(functional.layer_norm(x, x.shape[-1:]))


class Calm(Loud):
    """Layers whose gain starts next to zero. x: (batch, length, d_in)."""

    def __init__(self, d_in, d_out, max_length):
        super().__init__(d_in, d_out, max_length)
        self.layers = nn.ModuleList(Gained(layer) for layer in self.layers)

    def entered(self, x):
        return self.into(x) + self.positions[: x.shape[1]]


class Gained(nn.Module):
    """What a layer adds, with a gain. x: (batch, length, d_model)."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.gain = layer, nn.Parameter(torch.tensor(1e-3))

    def forward(self, x):
        return x + self.gain * (self.layer(x) - x)


class Faint(Loud):
    """What is read is much smaller than what is added for positions. x: (batch, length, d_in)."""

    def entered(self, x):
        return self.into(x) / 30 + 4 * self.positions[: x.shape[1]]


class Beside(Loud):
    """Gives every layer what the first one is given. x: (batch, length, d_in)."""

    def forward(self, x):
        x = self.into(x) + self.positions[: x.shape[1]]
        for layer in self.layers:
            y = layer(x)
        return self.out(functional.layer_norm(y, x.shape[-1:]))


class Adding(nn.Module):
    """Add to the input what attention makes of its norm. x: (batch, length, width)."""

    def __init__(self, mix):
        super().__init__()
        self.mix = mix

    def forward(self, x):
        normed = functional.layer_norm(x, x.shape[-1:])
        return x + self.mix(normed, normed, normed)[0]


class Shallow(nn.Module):
    """A norm of which little is left."""

    def forward(self, x):
        return (x / x.std(-1, keepdim=True)).clamp(-0.01, 0.01)


class ShallowModel(Model):
    """A language model whose answers are read off such a norm."""

    def __init__(self, vocab_size, max_length):
        super().__init__(vocab_size, max_length)
        self.last = Shallow()

    def forward(self, tokens):
        x = self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]
        return self.logits(self.last(x + self.mix(self.norm(x))))


class AheadModel(Model):
    """A language model that adds what stands behind each position. tokens: (batch, length)."""

    def forward(self, tokens):
        x = self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]
        return self.logits(x + self.mix(self.norm(x)) + x.roll(-1, 1))


class LateModel(Model):
    """A language model whose outputs see nothing of the last two tokens. tokens: (batch, length)."""

    def forward(self, tokens):
        x = functional.pad(self.embedding(tokens), (0, 0, 2, 0))[:, :-2] + self.positions.weight[: tokens.shape[1]]
        return self.logits(x + self.mix(self.norm(x)))


class Sometimes(Loud):
    """Leaves layers out by chance in training, and none in evaluation. x: (batch, length, d_in)."""

    def forward(self, x):
        x = self.into(x) + self.positions[: x.shape[1]]
        for layer in self.layers:
            x = layer(x) if not self.training or torch.rand(()) < 0.3 else x
        return self.out(functional.layer_norm(x, x.shape[-1:]))


class Bare(nn.Module):
    """A language model of weights and functions, without parts. tokens: (batch, length)."""

    def __init__(self, vocab_size, max_length, width=24):
        super().__init__()
        self.table, self.places = (nn.Parameter(0.1 * torch.randn(n, width)) for n in (vocab_size, max_length))
        self.read, self.write = (nn.Parameter(torch.randn(n, width) * width**-0.5) for n in (3 * width, width))

    def forward(self, tokens):
        x = self.table[tokens] + self.places[: tokens.shape[1]]
        q, k, v = functional.linear(x, self.read).chunk(3, -1)
        x = x + functional.linear(functional.scaled_dot_product_attention(q, k, v, is_causal=True), self.write)
        return functional.linear(x, self.table)


class Quiet(nn.Module):
    """Starts with nothing in its branch. x: (batch, length, 1)."""

    def __init__(self, d_in, d_out, both: bool = True, d_model=16):
        super().__init__()
        self.into, self.out = nn.Linear(d_in, d_model), nn.Linear(d_model, d_out)
        self.up, self.down = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        for layer in (self.up, self.down) if both else (self.down,):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        x = self.into(x)
        return self.out(x + self.down(functional.gelu(self.up(x))))


class Large(Attention):
    """Causal attention whose queries and keys are drawn at size one. x: (batch, length, d_model)."""

    def __init__(self, d_model):
        super().__init__(d_model)
        for part in (self.query, self.key):
            nn.init.normal_(part.weight)


class LargeModel(Model):
    """A language model around it. tokens: (batch, length)."""

    mixer = Large


class Blind(nn.Module):
    """The answer is that of a vector before the input, which sees itself alone; or of the last position, times zero."""

    def __init__(self, d_in, d_out, starts_at_zero=False):
        super().__init__()
        self.into, self.first = nn.Linear(d_in, 16), nn.Parameter(torch.randn(1, 1, 16))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in "ab")
        self.out = nn.Linear(16, d_out)
        self.starts_at_zero = starts_at_zero
        if starts_at_zero:
            nn.init.zeros_(self.out.weight)

    def forward(self, x):
        y = torch.cat([self.first.expand(len(x), -1, -1), self.into(x)], 1)
        for layer in self.layers:
            y = layer(y, src_mask=None if self.starts_at_zero else torch.ones(*[y.shape[1]] * 2).triu(1).bool())
        return self.out(y[:, 0])


class Tired(Recurrent):
    """An LSTM that gives up after some steps of training."""

    def __init__(self, d_model):
        super().__init__(d_model)
        self.calls = 0

    def forward(self, x):
        self.calls += self.training
        if self.calls > 20:
            raise ValueError("no more calls")
        return super().forward(x)


class Messy(Attention):
    """Causal attention that writes into its input and seeds chance. x: (batch, length, d_model)."""

    def forward(self, x):
        torch.manual_seed(0)
        x += 1.0
        return super().forward(x)


class OverBatch(nn.Module):
    """A number for every step of a series, by attention that takes the batch for time."""

    def __init__(self, in_features, out_features, d_model=16):
        super().__init__()
        self.begin = nn.Linear(in_features, d_model)
        self.query, self.key, self.value = (nn.Linear(d_model, d_model) for _ in range(3))
        self.end = nn.Linear(d_model, out_features)

    def forward(self, x):
        h = self.begin(x)
        query, key, value = (part(h).transpose(0, 1) for part in (self.query, self.key, self.value))
        weights = (query @ key.transpose(1, 2) / h.size(-1) ** 0.5).softmax(-1)
        return self.end((weights @ value).transpose(0, 1) + h)
