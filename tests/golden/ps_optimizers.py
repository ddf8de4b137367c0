"""Golden numbers for the optimizers of the parameter server: 100 steps of each on the same gradients.

    python tests/golden/ps_optimizers.py > tests/golden/ps_optimizers.json

Needs PyTorch (made with 2.14.1, CPU). SGD, momentum and Adagrad come from `torch.optim`, Adam from
`torch.optim.SparseAdam` on a sparse gradient that names every row (so its step is the global one). With L2 and with decoupled weight
decay they are those of `torch.optim` (`weight_decay`), which refuses sparse gradients there: all rows are touched in every step here, so
dense ones are the same. PyTorch has no
FTRL: `ftrl` below is algorithm 1 of McMahan et al., "Ad click prediction: a view from the trenches", 2013, in float64.

The gradient of weight i at step t (from 1) is `grad(t, i)`, exact in float32, so the test makes the same ones.
"""

import json
import math

import torch

ROWS, DIM, STEPS = 4, 11, 100
KEEP = (1, 2, 10, 100)


def grad(t, i):
    """Multiples of 1/64 in [-1, 1], a few of them zero."""
    return ((t * 37 + i * 101 + t * i) % 129 - 64) / 64


def start(i):
    """Multiples of 1/256 in [-0.25, 0.25)."""
    return ((i * 89) % 128 - 64) / 256


def torch_run(make, sparse=False):
    weights = torch.tensor([start(i) for i in range(ROWS * DIM)], dtype=torch.float32).reshape(ROWS, DIM)
    weights = torch.nn.Parameter(weights)
    optimizer = make([weights])
    out = {}
    for t in range(1, STEPS + 1):
        g = torch.tensor([grad(t, i) for i in range(ROWS * DIM)], dtype=torch.float32).reshape(ROWS, DIM)
        weights.grad = torch.sparse_coo_tensor(torch.arange(ROWS)[None], g, (ROWS, DIM)) if sparse else g
        optimizer.step()
        if t in KEEP:
            out[t] = weights.detach().flatten().tolist()
    return out


def ftrl(alpha, beta, l1, l2):
    size = ROWS * DIM
    w, z, n = [0.0] * size, [0.0] * size, [0.0] * size
    out = {}
    for t in range(1, STEPS + 1):
        for i in range(size):
            g = grad(t, i)
            sigma = (math.sqrt(n[i] + g * g) - math.sqrt(n[i])) / alpha
            z[i] += g - sigma * w[i]
            n[i] += g * g
            if abs(z[i]) <= l1:
                w[i] = 0.0
            else:
                w[i] = -(z[i] - math.copysign(l1, z[i])) / ((beta + math.sqrt(n[i])) / alpha + l2)
        if t in KEEP:
            out[t] = list(w)
    return out


def main():
    optim = torch.optim
    cases = []

    def case(optimizer, weights):
        cases.append({"optimizer": optimizer, "weights": weights})

    case({"kind": "sgd", "lr": 0.05}, torch_run(lambda p: optim.SGD(p, lr=0.05)))
    case({"kind": "momentum", "lr": 0.01, "momentum": 0.9}, torch_run(lambda p: optim.SGD(p, lr=0.01, momentum=0.9)))
    case(
        {"kind": "adagrad", "lr": 0.05, "initial_accumulator": 0.1},
        torch_run(lambda p: optim.Adagrad(p, lr=0.05, initial_accumulator_value=0.1)),
    )
    case({"kind": "adagrad"}, torch_run(lambda p: optim.Adagrad(p)))
    case({"kind": "adam", "lr": 0.01}, torch_run(lambda p: optim.SparseAdam(p, lr=0.01), sparse=True))
    case(
        {"kind": "adam", "beta1": 0.8, "beta2": 0.95, "eps": 1e-6},
        torch_run(lambda p: optim.SparseAdam(p, betas=(0.8, 0.95), eps=1e-6), sparse=True),
    )
    case({"kind": "sgd", "lr": 0.05, "l2": 0.5}, torch_run(lambda p: optim.SGD(p, lr=0.05, weight_decay=0.5)))
    case(
        {"kind": "momentum", "lr": 0.01, "momentum": 0.9, "l2": 0.25},
        torch_run(lambda p: optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.25)),
    )
    case(
        {"kind": "adagrad", "lr": 0.05, "initial_accumulator": 0.1, "l2": 0.5},
        torch_run(lambda p: optim.Adagrad(p, lr=0.05, initial_accumulator_value=0.1, weight_decay=0.5)),
    )
    case({"kind": "adam", "lr": 0.01, "l2": 0.5}, torch_run(lambda p: optim.Adam(p, lr=0.01, weight_decay=0.5)))
    case(
        {"kind": "adamw", "lr": 0.01, "weight_decay": 2.0},
        torch_run(lambda p: optim.AdamW(p, lr=0.01, weight_decay=2.0)),
    )
    case({"kind": "adamw"}, torch_run(lambda p: optim.AdamW(p)))
    for alpha, beta, l1, l2 in ((0.1, 1.0, 0.0, 0.0), (0.3, 1.0, 1.5, 0.25)):
        case({"kind": "ftrl", "alpha": alpha, "beta": beta, "l1": l1, "l2": l2}, ftrl(alpha, beta, l1, l2))
    head = {"torch": torch.__version__, "rows": ROWS, "dim": DIM, "steps": STEPS}
    lines = ",\n".join(json.dumps(case) for case in cases)
    print(json.dumps(head)[:-1] + ', "cases": [\n' + lines + "\n]}")


if __name__ == "__main__":
    main()
