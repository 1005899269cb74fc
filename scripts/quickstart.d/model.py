# SPDX-License-Identifier: Apache-2.0
"""The training that the quickstart saves, loses and resumes.

A small GPT learns to add: its data are lines "37+85=122" that are drawn as
they are needed. Everything that decides the next step (weights, Adam's
moments, step, random numbers of data and dropout) is in state(), one flat
dictionary of tensors, so that any format can hold it.
"""
import torch
from torch import nn
from torch.nn import functional

ALPHABET = "0123456789+=\n"
WIDTH, LAYERS, HEADS = 512, 6, 8  # 19 M parameters: 228 MB with Adam's moments
BATCH, LENGTH = 8, 32
SEED = 20240229


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(),
                                 nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, HEADS, -1).transpose(1, 2)
                   for y in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(len(ALPHABET), WIDTH)
        self.place = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, len(ALPHABET))

    def forward(self, x):
        h = self.token(x) + self.place.weight[:x.shape[1]]
        return self.head(self.norm(self.blocks(h)))


def draw_batch():
    rows = []
    for _ in range(BATCH):
        text = ""
        while len(text) <= LENGTH:
            a, b = torch.randint(0, 100, (2,)).tolist()
            text += f"{a}+{b}={a + b}\n"
        rows.append([ALPHABET.index(c) for c in text[:LENGTH + 1]])
    rows = torch.tensor(rows)
    return rows[:, :-1], rows[:, 1:]


class Training:
    def __init__(self):
        # The same sums in the same order, whatever the machine's load.
        torch.set_num_threads(2)
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(SEED)
        self.model = Gpt()
        self.adam = torch.optim.Adam(self.model.parameters(), lr=3e-4)
        self.step = 0

    def advance(self):
        """One step; returns its loss."""
        x, y = draw_batch()
        loss = functional.cross_entropy(self.model(x).flatten(0, 1),
                                        y.flatten())
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        self.step += 1
        return loss.item()

    def state(self):
        """Name to tensor; not copies."""
        out = {"step": torch.tensor(self.step), "rng": torch.get_rng_state()}
        for name, p in self.model.named_parameters():
            out[f"model.{name}"] = p.detach()
            for key, value in self.adam.state[p].items():
                out[f"adam.{name}.{key}"] = value
        return out

    def restore(self, state):
        self.step = int(state["step"])
        torch.set_rng_state(state["rng"])
        for name, p in self.model.named_parameters():
            with torch.no_grad():
                p.copy_(state[f"model.{name}"])
            prefix = f"adam.{name}."
            self.adam.state[p] = {
                key[len(prefix):]: value.clone()
                for key, value in state.items() if key.startswith(prefix)}
