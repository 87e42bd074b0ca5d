"""Reference values for tests/optimizers: python3 tests/reference/optimizers.py > tests/reference/optimizers.json

Needs PyTorch (2.9 or later, for Muon) and NumPy. Each optimizer takes 100 steps in f64 from parameters and gradients that follow from a formula;
recorded are the parameters behind steps 1, 10 and 100. LAMB, Lion and AdaBound are not in PyTorch: they are written here after their papers, in
NumPy. PyTorch's Muon rounds to bf16 on its way, which is taken out, so that what is compared is the method. Behind those are schedules, averages, and the
losses of a perceptron for 50 steps.
"""
import json

import numpy as np
import torch
from torch.optim import lr_scheduler

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
torch.Tensor.bfloat16 = lambda self: self.clone()

STEPS, KEPT = 100, (1, 10, 100)


def first(shape):
    i = np.arange(int(np.prod(shape)))
    return (((i * 29) % 17) / 8 - 1).reshape(shape)


def gradient(shape, t):
    i = np.arange(int(np.prod(shape)))
    return (((i * 37 + t * t * 13 + t * 11) % 101) / 50 - 0.8).reshape(shape)


def of_torch(make, shape):
    p = torch.nn.Parameter(torch.tensor(first(shape)))
    optimizer = make([p])
    kept = []
    for t in range(1, STEPS + 1):
        p.grad = torch.tensor(gradient(shape, t))
        optimizer.step()
        if t in KEPT:
            kept += p.detach().numpy().ravel().tolist()
    return kept


def of_numpy(step, shape):
    p, state, kept = first(shape), {}, []
    for t in range(1, STEPS + 1):
        p = step(p, gradient(shape, t), t, state)
        if t in KEPT:
            kept += p.ravel().tolist()
    return kept


def moments(g, t, s, b1, b2):
    s["m"] = b1 * s.get("m", 0) + (1 - b1) * g
    s["v"] = b2 * s.get("v", 0) + (1 - b2) * g * g
    return s["m"], s["v"]


def lamb(p, g, t, s, lr=0.01, b1=0.9, b2=0.999, eps=1e-6, wd=0.1):
    """Algorithm 2 of arXiv:1904.00962, with the identity for phi."""
    m, v = moments(g, t, s, b1, b2)
    u = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps) + wd * p
    return p - lr * np.linalg.norm(p) / np.linalg.norm(u) * u


def lion(p, g, t, s, lr=0.01, b1=0.9, b2=0.99, wd=0.1):
    """Algorithm 2 of arXiv:2302.06675."""
    m = s.get("m", np.zeros_like(p))
    u = np.sign(b1 * m + (1 - b1) * g)
    s["m"] = b2 * m + (1 - b2) * g
    return p - lr * (u + wd * p)


def adabound(p, g, t, s, lr=0.01, b1=0.9, b2=0.999, eps=1e-8, wd=0.0, final=0.1, gamma=1e-3, largest=False):
    """Algorithms 2 and 3 of arXiv:1902.09843, with the corrections of the first steps that its authors' program has."""
    m, v = moments(g + wd * p, t, s, b1, b2)
    if largest:
        v = s["most"] = np.maximum(s.get("most", 0), v)
    size = lr * np.sqrt(1 - b2**t) / (1 - b1**t) / (np.sqrt(v) + eps)
    low, high = final * (1 - 1 / (gamma * t + 1)), final * (1 + 1 / (gamma * t))
    return p - np.clip(size, low, high) * m


o, M, V = torch.optim, (2, 3), (5,)
optimizers = [
    ("sgd:lr=0.1", V, lambda p: o.SGD(p, lr=0.1)),
    ("sgd:lr=0.1,wd=0.1,momentum=0.9", M, lambda p: o.SGD(p, lr=0.1, weight_decay=0.1, momentum=0.9)),
    ("sgd:lr=0.1,momentum=0.9,dampening=0.5", V, lambda p: o.SGD(p, lr=0.1, momentum=0.9, dampening=0.5)),
    ("sgd:lr=0.1,momentum=0.9,nesterov=true", V, lambda p: o.SGD(p, lr=0.1, momentum=0.9, nesterov=True)),
    ("adam", M, lambda p: o.Adam(p)),
    ("adam:lr=0.01,b1=0.8,b2=0.95,eps=1e-3,wd=0.1", V, lambda p: o.Adam(p, 0.01, (0.8, 0.95), 1e-3, 0.1)),
    ("adam:lr=0.01,b2=0.9,amsgrad=true", V, lambda p: o.Adam(p, 0.01, (0.9, 0.9), amsgrad=True)),
    ("adamw", V, lambda p: o.AdamW(p)),
    ("adamw:lr=0.03,wd=0.2", M, lambda p: o.AdamW(p, 0.03, weight_decay=0.2)),
    ("adamw:lr=0.01,b2=0.9,amsgrad=true", V, lambda p: o.AdamW(p, 0.01, (0.9, 0.9), amsgrad=True)),
    ("adamax", V, lambda p: o.Adamax(p)),
    ("adamax:lr=0.01,b2=0.9,wd=0.1", M, lambda p: o.Adamax(p, 0.01, (0.9, 0.9), weight_decay=0.1)),
    ("nadam", V, lambda p: o.NAdam(p)),
    ("nadam:lr=0.01,wd=0.1,md=0.01", M, lambda p: o.NAdam(p, 0.01, weight_decay=0.1, momentum_decay=0.01)),
    ("nadam:lr=0.01,wd=0.1,decoupled=true", V, lambda p: o.NAdam(p, 0.01, weight_decay=0.1, decoupled_weight_decay=True)),
    ("radam", V, lambda p: o.RAdam(p)),
    ("radam:lr=0.01,b2=0.9,wd=0.1", M, lambda p: o.RAdam(p, 0.01, (0.9, 0.9), weight_decay=0.1)),
    ("radam:lr=0.01,wd=0.1,decoupled=true", V, lambda p: o.RAdam(p, 0.01, weight_decay=0.1, decoupled_weight_decay=True)),
    ("adagrad", V, lambda p: o.Adagrad(p)),
    ("adagrad:lr=0.1,lr_decay=0.01,wd=0.1,initial=0.5", M, lambda p: o.Adagrad(p, 0.1, 0.01, 0.1, 0.5)),
    ("adadelta", V, lambda p: o.Adadelta(p)),
    ("adadelta:lr=0.5,rho=0.8,wd=0.1", M, lambda p: o.Adadelta(p, 0.5, 0.8, weight_decay=0.1)),
    ("rmsprop", V, lambda p: o.RMSprop(p)),
    ("rmsprop:alpha=0.9,momentum=0.9,wd=0.1", V, lambda p: o.RMSprop(p, alpha=0.9, momentum=0.9, weight_decay=0.1)),
    ("rmsprop:alpha=0.9,centered=true", V, lambda p: o.RMSprop(p, alpha=0.9, centered=True)),
    ("rmsprop:alpha=0.9,momentum=0.5,centered=true", M, lambda p: o.RMSprop(p, alpha=0.9, momentum=0.5, centered=True)),
    ("adafactor", V, lambda p: o.Adafactor(p)),
    ("adafactor:lr=0.1,wd=0.1", M, lambda p: o.Adafactor(p, 0.1, weight_decay=0.1)),
    ("adafactor:lr=0.1,eps1=1e-3,eps2=0.5,clip=1.5", (2, 2, 3), lambda p: o.Adafactor(p, 0.1, eps=(1e-3, 0.5), d=1.5)),
    ("muon:lr=0.01", M, lambda p: o.Muon(p, lr=0.01)),
    ("muon:lr=0.01,nesterov=false,steps=3", (3, 2), lambda p: o.Muon(p, lr=0.01, nesterov=False, ns_steps=3)),
    ("muon:lr=0.01,wd=0,match_adamw=true", (3, 2), lambda p: o.Muon(p, lr=0.01, weight_decay=0, adjust_lr_fn="match_rms_adamw")),
]
ours = [
    ("lamb:lr=0.01,wd=0.1", M, lamb),
    ("lion:lr=0.01,wd=0.1", M, lion),
    ("adabound:lr=0.01", V, adabound),
    ("adabound:lr=0.05,b2=0.9,wd=0.1,gamma=0.1,amsbound=true", M, lambda *a: adabound(*a, lr=0.05, b2=0.9, wd=0.1, gamma=0.1, largest=True)),
]

found = []
for text, shape, make in optimizers:
    found.append({"text": text, "shape": shape, "values": of_torch(make, shape)})
for text, shape, step in ours:
    found.append({"text": text, "shape": shape, "values": of_numpy(step, shape)})


def rates(lr, make, at):
    optimizer = o.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = make(optimizer)
    all = []
    for _ in range(max(at)):
        all.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return [all[t - 1] for t in at]


s = lr_scheduler


def warm(optimizer, steps, then):
    return s.SequentialLR(optimizer, [s.LinearLR(optimizer, 1 / steps, total_iters=steps - 1), then(optimizer)], [steps])


AT = (1, 2, 5, 10, 11, 20, 31, 50)
schedules = [
    ("0.1", 0.1, lambda x: s.ConstantLR(x, factor=1), AT),
    ("step(0.1,10,0.5)", 0.1, lambda x: s.StepLR(x, 10, 0.5), AT),
    ("exponential(0.1,0.9)", 0.1, lambda x: s.ExponentialLR(x, 0.9), AT),
    ("linear(0.1,20,0.02)", 0.1, lambda x: s.LinearLR(x, 1, 0.2, 20), AT),
    ("cosine(0.1,49)", 0.1, lambda x: s.CosineAnnealingLR(x, 49), AT),
    ("cosine(0.1,49,0.01)", 0.1, lambda x: s.CosineAnnealingLR(x, 49, 0.01), AT),
    ("onecycle(0.5,50)", 0.1, lambda x: s.OneCycleLR(x, 0.5, total_steps=50, cycle_momentum=False), AT),
    ("warmup(10,cosine(0.1,40))", 0.1, lambda x: warm(x, 10, lambda x: s.CosineAnnealingLR(x, 40)), AT),
]

class Holder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.p = torch.nn.Parameter(torch.zeros(V))


def averaged(**how):
    model = Holder()
    average = o.swa_utils.AveragedModel(model, **how)
    kept = []
    for t in range(1, STEPS + 1):
        model.p.data = torch.tensor(gradient(V, t))
        average.update_parameters(model)
        if t in KEPT:
            kept += average.module.p.detach().numpy().ravel().tolist()
    return kept


def clipped(limit):
    ps = [torch.nn.Parameter(torch.zeros(shape)) for shape in (V, M)]
    for k, p in enumerate(ps):
        p.grad = torch.tensor(gradient(p.shape, k + 1))
    norm = torch.nn.utils.clip_grad_norm_(ps, limit, foreach=False)
    return [norm.item()] + [v for p in ps for v in p.grad.numpy().ravel().tolist()]


def curve():
    """A perceptron 6-16-3 on 24 rows, in f32, with AdamW."""

    def numbers(shape, seed, scale):
        i = np.arange(int(np.prod(shape)))
        return torch.tensor((((i * 37 + seed * 11) % 101) / 50 - 1).reshape(shape) * scale, dtype=torch.float32)

    x, y = numbers((24, 6), 1, 1), torch.arange(24) * 7 % 3
    ps = [numbers((6, 16), 2, 0.5), numbers((16,), 3, 0.1), numbers((16, 3), 4, 0.5), numbers((3,), 5, 0.1)]
    for p in ps:
        p.requires_grad_()
    optimizer = o.AdamW(ps, lr=0.02, weight_decay=0.1)
    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(torch.relu(x @ ps[0] + ps[1]) @ ps[2] + ps[3], y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(ps, 0.5, foreach=False)
        optimizer.step()
        losses.append(loss.item())
    return losses


def line(entry):
    return json.dumps(entry, separators=(",", ":"))


def table(name, entries):
    return f'"{name}": [\n' + ",\n".join(line(e) for e in entries) + "\n]"


print("{")
print(f'"torch": "{torch.__version__}", "numpy": "{np.__version__}",')
print(table("optimizers", found) + ",")
print(table("schedules", [{"text": t, "at": at, "values": rates(lr, make, at)} for t, lr, make, at in schedules]) + ",")
print(table("averages", [
    {"kind": "exponential", "values": averaged(multi_avg_fn=o.swa_utils.get_ema_multi_avg_fn(0.9))},
    {"kind": "equal", "values": averaged()},
]) + ",")
print(table("clipped", [{"limit": limit, "values": clipped(limit)} for limit in (0.5, 100.0)]) + ",")
print(f'"curve": {line(curve())}')
print("}")
