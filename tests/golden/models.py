#!/usr/bin/env python3
"""PyTorch's numbers for the dense models: `python tests/golden/models.py > tests/golden/models.json` (torch 2.14.1, CPU).

All inputs come from a hash that `models/tests/golden.rs` repeats to the bit: first parameters (as `models/src/params.rs`
documents them), first rows, keys, dense features, labels. Each case is 100 steps: the dense parameters under one of
torch.optim's optimizers, the looked-up rows under plain SGD. Written down: losses on the way, and all numbers at the end.
"""
import json

import numpy as np
import torch

STEPS, ROWS, SLOTS, DENSE, DIM, KEYS = 100, 16, 3, 2, 4, 20
HIDDEN, CROSS_LAYERS, RANK, SEED, ROW_LR = [6, 5], 2, 3, 7, 0.5
# Attention: the slots of each pair, the history first, and the hidden layers of its activation unit.
PAIRS, UNIT = [(2, 0), (1, 0)], [5, 3]
LOSSES_OF = [1, 2, 5, 10, 20, 50, 100]
MASK = (1 << 64) - 1

MODELS = {
    "lr": {"linear"},
    "fm": {"linear", "fm"},
    "wide_deep": {"linear", "tower"},
    "ctr_dnn": {"tower"},
    "dcn_v2": {"cross", "tower"},
    "dcn_v2, rank 3": {"cross", "tower"},
    "dcn_v2, stacked": {"cross", "tower"},
    "dcn_v2, stacked, rank 3": {"linear", "cross", "tower"},
    "all": {"linear", "fm", "cross", "tower"},
    "din": {"attention", "tower"},
    "fm over din": {"attention", "fm", "cross"},
    "shared_bottom": {"tasks"},
    "mmoe": {"tasks"},
    "esmm": {"tasks"},
    "two_towers": {"towers"},
    "two_towers, dot": {"towers"},
    "in_batch_softmax": {"towers"},
    "in_batch_softmax, log_q": {"towers", "count"},
    "final_mlp": {"final_mlp"},
    "final_mlp, slots, heads": {"final_mlp"},
    "final_mlp, no gates": {"final_mlp"},
}
# FinalMLP: hidden layers of both towers, heads, hidden layers of the gates, and the slots that they read ([]: a learnt context).
FINAL_MLPS = {
    "final_mlp": ([HIDDEN, HIDDEN], 1, [4], [[], []]),
    "final_mlp, slots, heads": ([HIDDEN, [4, 10]], 5, [], [[], [0, 2]]),
    "final_mlp, no gates": ([[4], [6, 8]], 2, None, None),
}
# Two towers: slots and dense features of each, length of the vectors, temperature, the slot of the item.
SIDES, VECTOR_DIM, TEMPERATURE, ITEM = {"user": ([0, 2], [1]), "item": ([1], [0])}, 3, 0.5, 1
# Of several labels: the stacks that they share, the hidden layers of each label's tower, the weights of their losses.
TASKS = {
    "shared_bottom": (["bottom"], [3], [1.0, 0.5, 2.0]),
    "mmoe": (["expert.0", "expert.1", "expert.2"], [3], [1.0, 0.5]),
    "esmm": ([], HIDDEN, [1.0, 0.5]),
}
# For each kind: the settings as a job has them, and the same in PyTorch.
OPTIMIZERS = {
    "sgd": ({"lr": 0.1}, lambda params: torch.optim.SGD(params, lr=0.1)),
    "momentum": ({"lr": 0.02}, lambda params: torch.optim.SGD(params, lr=0.02, momentum=0.9)),
    "adagrad": ({"lr": 0.02, "initial_accumulator": 0.1},
                lambda params: torch.optim.Adagrad(params, lr=0.02, initial_accumulator_value=0.1)),
    "adam": ({"lr": 0.005}, lambda params: torch.optim.Adam(params, lr=0.005)),
    "adamw": ({"lr": 0.005, "weight_decay": 0.1}, lambda params: torch.optim.AdamW(params, lr=0.005, weight_decay=0.1)),
}
# Optional settings of the tower.
TOWERS = [{"activation": activation} for activation in ["gelu", "silu", "prelu"]]
TOWERS += [{"norm": "layer"}, {"norm": "layer", "activation": "prelu", "dropout": 0.1}, {"dropout": 0.3}, {"activation": "gelu", "dropout": 0.5}, {"activation": "sigmoid"}]
# Model, optimizer, bags, pooling, settings of the tower.
CASES = [(model, optimizer, "single", "sum", {})
         for model in ["lr", "fm", "wide_deep", "ctr_dnn", "dcn_v2"] for optimizer in OPTIMIZERS]
CASES += [(model, "adagrad", "bags", pooling, {}) for model in ["lr", "fm", "all"] for pooling in ["sum", "mean"]]
CASES += [(model, "adagrad", "bags", "max", {}) for model in ["lr", "all"]]
CASES += [("wide_deep", "adam", "single", "sum", tower) for tower in TOWERS]
CASES += [(model, optimizer, bags, "sum", {}) for model in TASKS for optimizer, bags in [("adam", "single"), ("adagrad", "bags")]]
CASES += [("shared_bottom", "adam", "single", "sum", TOWERS[5]), ("mmoe", "adam", "single", "sum", TOWERS[4]),
          ("esmm", "adam", "single", "sum", TOWERS[6])]
CASES += [("din", optimizer, "bags", "mean", {"unit": unit})
          for optimizer in ["adam", "adagrad"] for unit in ["prelu", "sigmoid", "relu"]]
CASES += [("din", "adam", "single", "sum", {"unit": "prelu", "activation": "sigmoid"}),
          ("fm over din", "adam", "bags", "max", {"unit": "silu"})]
CASES += [(model, optimizer, bags, "sum", {"activation": "gelu"}) for model in MODELS if "towers" in MODELS[model]
          for optimizer, bags in [("adam", "single"), ("adagrad", "bags")]]
CASES += [(model, optimizer, bags, "sum", {"activation": "gelu"}) for model in MODELS if model.startswith("dcn_v2,")
          for optimizer, bags in [("adam", "single"), ("adagrad", "bags")]]
# Smooth: with a bend at 0, the last bits of a float decide on which side of it a unit is.
NORMED = {"norm": "layer", "activation": "gelu", "dropout": 0.1}
CASES += [("two_towers", "adam", "single", "sum", NORMED), ("in_batch_softmax, log_q", "adam", "single", "sum", TOWERS[6]),
          ("in_batch_softmax, log_q", "adam", "bags", "mean", NORMED)]
CASES += [("final_mlp", "adam", "single", "sum", {"activation": "gelu"}), ("final_mlp", "adagrad", "bags", "mean", {}),
          ("final_mlp, slots, heads", "adam", "bags", "sum", {"activation": "gelu", "dropout": 0.1}),
          ("final_mlp, slots, heads", "adagrad", "single", "sum", {"activation": "prelu"}),
          ("final_mlp, no gates", "adam", "single", "sum", {"activation": "silu", "norm": "layer"}),
          ("final_mlp, no gates", "momentum", "bags", "max", {"activation": "gelu"})]


def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def unit(z):
    """From -1 to 1 in steps that f32 holds exactly."""
    return np.float32((mix(z) >> 40) / (1 << 23) - 1.0)


def number(stream, step, i):
    """The hash behind every input."""
    return mix((stream << 48) ^ (step << 32) ^ i)


def initial(name, shape):
    """The first values of a parameter, as params.rs has them."""
    if name.startswith("linear.") or name.endswith(".context") or name in ("similarity.bias", "fusion.bias"):
        return torch.zeros(shape)
    if name.endswith(".slope"):
        return torch.full(shape, 0.25)
    if name.endswith(".gamma") or name.endswith(".beta"):
        return torch.full(shape, float(name.endswith(".gamma")))
    fan_in = INPUTS[name.rsplit(".", 1)[0]]
    bound = np.float32(1.0) / np.sqrt(np.float32(fan_in))
    state = mix(SEED)
    for byte in name.encode():
        state = mix(state ^ byte)
    values = []
    for _ in range(int(np.prod(shape))):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        values.append(unit(state) * bound)
    return torch.tensor(np.array(values, dtype=np.float32)).reshape(shape)


INPUTS = {}


def shapes(model, parts, tower):
    width = SLOTS * DIM + DENSE
    layers = []
    if "cross" in parts:
        for l in range(CROSS_LAYERS):
            layers += [(f"cross.{l}.v", RANK, width)] if "rank" in model else []
            layers += [(f"cross.{l}", width, RANK if "rank" in model else width)]
        layers += [] if "stacked" in model else [("cross.out", 1, width)]
    if "tower" in parts:
        widths = [width, *HIDDEN, 1]
        layers += [(f"tower.{l}", widths[l + 1], widths[l]) for l in range(len(HIDDEN) + 1)]
    if "tasks" in parts:
        shared, task_hidden, weights = TASKS[model]
        for stack in shared:
            widths = [width, *HIDDEN]
            layers += [(f"{stack}.{l}", widths[l + 1], widths[l]) for l in range(len(HIDDEN))]
        if len(shared) > 1:
            layers += [(f"gate.{k}", len(shared), width) for k in range(len(weights))]
        for k in range(len(weights)):
            widths = [HIDDEN[-1] if shared else width, *task_hidden, 1]
            layers += [(f"task.{k}.{l}", widths[l + 1], widths[l]) for l in range(len(task_hidden) + 1)]
    if "towers" in parts:
        for side, (slots, dense) in SIDES.items():
            widths = [len(slots) * DIM + len(dense), *HIDDEN, VECTOR_DIM]
            layers += [(f"{side}.{l}", widths[l + 1], widths[l]) for l in range(len(HIDDEN) + 1)]
    if "final_mlp" in parts:
        return final_mlp_shapes(model, width, tower)
    if "attention" in parts:
        widths = [4 * DIM, *UNIT, 1]
        layers = [(f"attention.{p}.{l}", widths[l + 1], widths[l])
                  for p in range(len(PAIRS)) for l in range(len(UNIT) + 1)] + layers
    found = {}
    if "linear" in parts:
        found |= {"linear.weight": (1, DENSE), "linear.bias": (1,)}
    if "towers" in parts and "in_batch" not in model:
        found["similarity.bias"] = (1,)
    for name, outputs, inputs in layers:
        INPUTS[name] = inputs
        found[f"{name}.weight"] = (outputs, inputs)
        if name.endswith(".v"):
            continue
        found[f"{name}.bias"] = (outputs,)
        is_hidden = outputs > 1 and (
            name.split(".")[0] in ("tower", "bottom", "expert", "task")
            or name.split(".")[0] in SIDES and not name.endswith(f".{len(HIDDEN)}"))
        if is_hidden and tower.get("norm") == "layer":
            found |= {f"{name}.gamma": (outputs,), f"{name}.beta": (outputs,)}
        if is_hidden and tower.get("activation") == "prelu":
            found[f"{name}.slope"] = (outputs,)
        if name.startswith("attention.") and outputs > 1 and tower["unit"] == "prelu":
            found[f"{name}.slope"] = (outputs,)
    return found


def final_mlp_shapes(model, width, tower):
    hidden, heads, gate_hidden, contexts = FINAL_MLPS[model]
    found = {}

    def layer(name, outputs, inputs):
        INPUTS[name] = inputs
        found.update({f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)})

    for s, side in enumerate(["first", "second"]):
        if gate_hidden is not None:
            inputs = DIM * max(len(contexts[s]), 1)
            if not contexts[s]:
                found[f"{side}_gate.context"] = (1, DIM)
            for l, (i, o) in enumerate(zip([inputs, *gate_hidden], [*gate_hidden, width])):
                layer(f"{side}_gate.{l}", o, i)
        for l, (i, o) in enumerate(zip([width, *hidden[s]], hidden[s])):
            layer(f"{side}.{l}", o, i)
            if tower.get("norm") == "layer":
                found.update({f"{side}.{l}.gamma": (o,), f"{side}.{l}.beta": (o,)})
            if tower.get("activation") == "prelu":
                found[f"{side}.{l}.slope"] = (o,)
    first, second = hidden[0][-1], hidden[1][-1]
    found["fusion.product.weight"] = (second, first // heads)
    INPUTS.update({"fusion.product": second * first // heads, "fusion.first": first, "fusion.second": second})
    return found | {"fusion.first.weight": (1, first), "fusion.second.weight": (1, second), "fusion.bias": (1,)}


def final_mlp(model, params, x0, layer, hidden_layers):
    hidden, heads, gate_hidden, contexts = FINAL_MLPS[model]
    outputs = []
    for s, side in enumerate(["first", "second"]):
        x = x0
        if gate_hidden is not None:
            context = torch.cat([x0[:, slot * DIM:(slot + 1) * DIM] for slot in contexts[s]], 1) if contexts[s] \
                else params[f"{side}_gate.context"].expand(ROWS, -1)
            for l in range(len(gate_hidden)):
                context = torch.relu(layer(f"{side}_gate.{l}", context))
            x = x0 * 2 * torch.sigmoid(layer(f"{side}_gate.{len(gate_hidden)}", context))
        outputs.append(hidden_layers(side, len(hidden[s]), s * len(hidden[0]), x))
    first, second = outputs
    weight = params["fusion.product.weight"]
    z = layer("fusion.first", first).squeeze(1) + layer("fusion.second", second).squeeze(1) + params["fusion.bias"]
    for h in range(heads):
        own = weight.chunk(heads, 0)[h]
        z = z + ((first.chunk(heads, 1)[h] @ own.T) * second.chunk(heads, 1)[h]).sum(1)
    return z


def batch(step, kind, per_row):
    """Labels (`per_row` of them for each row), dense features, and the keys of each bag, row-major."""
    labels = torch.tensor([float(number(1, step, i) % 3 == 0) for i in range(ROWS * per_row)])
    dense = torch.tensor(np.array([unit(number(2, step, i)) for i in range(ROWS * DENSE)])).reshape(ROWS, DENSE)
    bags = []
    for b in range(ROWS * SLOTS):
        count = 1 if kind == "single" else number(3, step, b) % 4
        bags.append([number(4, step, 4 * b + i) % KEYS for i in range(count)])
    return labels, dense, bags


def dropout(rate, x, step, layer):
    """The units that models/src/dropout.rs drops; the number of the step is the id of the batch."""
    stream = mix(mix(mix(SEED ^ 0x64726F706F757421) ^ step) ^ layer)
    units = x.shape[1]
    half = (units + 1) // 2

    def factor(row, unit):
        word = mix((stream + (row * half + unit % half + 1) * 0x9E3779B97F4A7C15) & MASK)
        bits = word & 0xFFFFFFFF if unit < half else word >> 32
        return 0.0 if bits < int(rate * 2**32) else 1 / (1 - rate)

    return x * torch.tensor([[factor(row, unit) for unit in range(units)] for row in range(ROWS)])


def activation(name, y, params, layer):
    functional = torch.nn.functional
    if name == "prelu":
        return functional.prelu(y, params[f"{layer}.slope"])
    return {"relu": torch.relu, "gelu": functional.gelu, "silu": functional.silu,
            "sigmoid": torch.sigmoid}[name](y)


def attend(params, table, bags, pooled, unit):
    """The vectors of all slots, those of histories replaced."""
    slots = list(pooled.unbind(1))
    for p, (history, target) in enumerate(PAIRS):
        rows = []
        for row in range(ROWS):
            h = table[bags[row * SLOTS + history]]
            t = slots[target][row].expand_as(h)
            x = torch.cat([t, h, t - h, t * h], 1)
            for l in range(len(UNIT) + 1):
                layer = f"attention.{p}.{l}"
                x = torch.nn.functional.linear(x, params[f"{layer}.weight"], params[f"{layer}.bias"])
                if l < len(UNIT):
                    x = activation(unit, x, params, layer)
            rows.append((x * h).sum(0))
        slots[history] = torch.stack(rows)
    return torch.stack(slots, 1)


def logits(model, parts, params, table, dense, bags, pooling, tower, step):
    def pool(bag):
        if not bag:
            return torch.zeros(table.shape[1])
        rows = table[bag]
        return {"sum": rows.sum, "mean": rows.mean, "max": rows.amax}[pooling](0)

    pooled = torch.stack([pool(bag) for bag in bags]).reshape(ROWS, SLOTS, -1)
    z = torch.zeros(ROWS)
    if "linear" in parts:
        z = z + pooled[:, :, 0].sum(1) + torch.nn.functional.linear(
            dense, params["linear.weight"], params["linear.bias"]).squeeze(1)
        pooled = pooled[:, :, 1:]
    if "count" in parts:
        pooled = pooled[:, :, 1:]
    if "attention" in parts:
        pooled = attend(params, table, bags, pooled, tower["unit"])
    if "fm" in parts:
        for i in range(SLOTS):
            for j in range(i):
                z = z + (pooled[:, i] * pooled[:, j]).sum(1)
    x0 = torch.cat([pooled.reshape(ROWS, -1), dense], 1)

    def layer(name, x):
        return torch.nn.functional.linear(x, params[f"{name}.weight"], params.get(f"{name}.bias"))

    if "cross" in parts:
        x = x0
        for l in range(CROSS_LAYERS):
            low = layer(f"cross.{l}.v", x) if "rank" in model else x
            x = x0 * layer(f"cross.{l}", low) + x
        if "stacked" in model:
            x0 = x
        else:
            z = z + layer("cross.out", x).squeeze(1)

    def hidden(name, layers, first, x):
        """`layers` hidden layers; `first` is the number of the first of them among all of the model."""
        for l in range(layers):
            stem = f"{name}.{l}"
            y = layer(stem, x)
            if tower.get("norm") == "layer":
                y = torch.nn.functional.layer_norm(y, y.shape[1:], params[f"{stem}.gamma"], params[f"{stem}.beta"])
            x = activation(tower.get("activation", "relu"), y, params, stem)
            if "dropout" in tower:
                x = dropout(tower["dropout"], x, step, first + l)
        return x

    if "towers" in parts:
        vectors = []
        for s, (side, (slots, columns)) in enumerate(SIDES.items()):
            x = torch.cat([pooled[:, slots].reshape(ROWS, -1), dense[:, columns]], 1)
            y = layer(f"{side}.{len(HIDDEN)}", hidden(side, len(HIDDEN), s * len(HIDDEN), x))
            vectors.append(y if "dot" in model else y / (y.square().sum(1, keepdim=True) + 1e-8).sqrt())
        if "in_batch" in model:
            return vectors
        z = z + (vectors[0] * vectors[1]).sum(1) / TEMPERATURE + params["similarity.bias"]
    if "final_mlp" in parts:
        return final_mlp(model, params, x0, layer, hidden)
    if "tower" in parts:
        z = z + layer(f"tower.{len(HIDDEN)}", hidden("tower", len(HIDDEN), 0, x0)).squeeze(1)
    if "tasks" in parts:
        shared, task_hidden, weights = TASKS[model]
        stacks = [hidden(stack, len(HIDDEN), e * len(HIDDEN), x0) for e, stack in enumerate(shared)]
        z = []
        for k in range(len(weights)):
            x = stacks[0] if stacks else x0
            if len(stacks) > 1:
                shares = torch.softmax(layer(f"gate.{k}", x0), 1)
                x = sum(shares[:, e:e + 1] * stack for e, stack in enumerate(stacks))
            first = len(stacks) * len(HIDDEN) + k * len(task_hidden)
            z.append(layer(f"task.{k}.{len(task_hidden)}", hidden(f"task.{k}", len(task_hidden), first, x)).squeeze(1))
    return z


def in_batch_loss(model, vectors, labels, table, bags):
    """Softmax over the items of the batch, in plain loops; and how often each key is an item."""
    users, items = vectors
    keys = [bags[row * SLOTS + ITEM][0] if bags[row * SLOTS + ITEM] else None for row in range(ROWS)]
    occurrences = [keys.count(key) for key in range(KEYS)]
    loss = torch.zeros(())
    for i in range(ROWS):
        if keys[i] is None:
            continue
        z = {}
        for j in range(ROWS):
            if keys[j] is not None and (j == i or keys[j] != keys[i]):
                z[j] = (users[i] * items[j]).sum() / TEMPERATURE
                if "log_q" in model:
                    z[j] = z[j] - torch.log(table[keys[j], 0].detach().clamp(min=0) + occurrences[keys[j]])
        loss = loss + labels[i] * (torch.logsumexp(torch.stack(list(z.values())), 0) - z[i])
    return loss / ROWS, occurrences


def loss_of(model, z, labels):
    if model not in TASKS:
        return torch.nn.functional.binary_cross_entropy_with_logits(z, labels)
    weights, labels = TASKS[model][2], labels.reshape(ROWS, -1)
    losses = [torch.nn.functional.binary_cross_entropy_with_logits(z[k], labels[:, k]) for k in range(len(weights))]
    if model == "esmm":
        # As in the paper: the second probability is a product.
        p = torch.sigmoid(z[0].double()) * torch.sigmoid(z[1].double())
        y = labels[:, 1].double()
        losses[1] = -(y * torch.log(p) + (1 - y) * torch.log1p(-p)).mean().float()
    return sum(weight * loss for weight, loss in zip(weights, losses))


def run(model, optimizer, kind, pooling, tower):
    parts = MODELS[model]
    row_dim = ("linear" in parts or "count" in parts) + (DIM if parts - {"linear"} else 0)
    params = {name: initial(name, shape).requires_grad_() for name, shape in shapes(model, parts, tower).items()}
    first = [np.float32(0.25) * unit(number(5, 0, i)) for i in range(KEYS * row_dim)]
    table = torch.tensor(np.array(first)).reshape(KEYS, row_dim).requires_grad_()
    settings, make = OPTIMIZERS[optimizer]
    dense_optimizer, row_optimizer = make(params.values()), torch.optim.SGD([table], lr=ROW_LR)
    losses = []
    for step in range(1, STEPS + 1):
        labels, dense, bags = batch(step, kind, len(TASKS[model][2]) if model in TASKS else 1)
        dense_optimizer.zero_grad()
        row_optimizer.zero_grad()
        z = logits(model, parts, params, table, dense, bags, pooling, tower, step)
        occurrences = None
        if "in_batch" in model:
            loss, occurrences = in_batch_loss(model, z, labels, table, bags)
        else:
            loss = loss_of(model, z, labels)
        loss.backward()
        if "count" in parts:
            table.grad[:, 0] = -torch.tensor(occurrences, dtype=torch.float32)
        dense_optimizer.step()
        row_optimizer.step()
        if step in LOSSES_OF:
            losses.append(short(loss))
    final = {name: [short(x) for x in param.flatten()] for name, param in params.items()}
    return {"model": model, "optimizer": {"kind": optimizer, **settings}, "bags": kind, "pooling": pooling, **tower,
            "losses": losses, "parameters": final, "rows": [short(x) for x in table.flatten()]}


def short(x):
    """Eight digits: a tenth of the tolerance of the test."""
    return float(f"{x.item():.8g}")


def main():
    torch.set_num_threads(1)
    cases = [run(*case) for case in CASES]
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    print(f'{{"torch":"{torch.__version__}","steps":{LOSSES_OF},"cases":[\n{lines}\n]}}')


if __name__ == "__main__":
    main()
