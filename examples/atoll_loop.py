"""A plain PyTorch loop: a model with tied weights, a frozen layer and a BatchNorm learns to echo."""

import os

import atoll
import torch


class Echo(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm = torch.nn.Embedding(64, 32), torch.nn.BatchNorm1d(32)
        self.mix, self.head = torch.nn.Linear(32, 32).requires_grad_(False), torch.nn.Linear(32, 64)
        self.head.weight = self.embedding.weight

    def forward(self, symbols):
        return self.head(self.norm(self.mix(self.embedding(symbols))))


torch.manual_seed(0)
model = Echo()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
learner = atoll.join(os.environ["ATOLL_URL"], model=model, optimizer=optimizer)
torch.manual_seed(int(os.environ.get("SEED", "1")))
for symbols in torch.randint(64, (int(os.environ.get("STEPS", "2000")), 32)):
    loss = torch.nn.functional.cross_entropy(model(symbols), symbols)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    learner.step(tokens=len(symbols))
