"""One run of a FuxiCTR model over rows of rows.py: train.py MODEL SEED DIR [first]. Prints CPU seconds of the epoch and the AUC.
`first`: with Forebay's first values (embeddings uniform in +-.01, linear weights of dense features 0, PyTorch's own in layers) instead of
FuxiCTR's."""
import json, os, resource, sys
import torch
from fuxictr.features import FeatureMap
from fuxictr.pytorch.dataloaders import RankDataLoader
from fuxictr.pytorch.torch_utils import seed_everything

model, seed, folder = sys.argv[1:4]
sys.path.insert(0, os.environ["FUXICTR"] + "/model_zoo")      # the repository: the wheel lacks the models
torch.set_num_threads(2)
seed_everything(int(seed))
HIDDEN = [400, 400, 400]
BATCH = 2048
features = FeatureMap("history", folder)
fields = [f"I{i}" for i in range(1, 14)] + [f"C{i}" for i in range(1, 27)]
use = {"din": fields + ["item", "history"], "dssm": fields[13:] + ["item", "history"]}.get(model, fields)
features.load(f"{folder}/feature_map.json", {"embedding_dim": 16, "use_features": use})
features.num_fields = len(use)
settings = dict(gpu=-1, embedding_dim=16, learning_rate=1e-3, optimizer="adam", loss="binary_crossentropy", verbose=0,
                model_root=folder, metrics=["AUC", "logloss"])
if model == "din":
    from DIN.src.DIN import DIN
    net = DIN(features, dnn_hidden_units=HIDDEN, attention_hidden_units=[64], attention_hidden_activations=os.environ.get("ATTENTION", "PReLU"),
              din_target_field="item", din_sequence_field="history", **settings)
elif model == "dssm":
    from DSSM.src.DSSM import DSSM
    features.features["history"]["feature_encoder"] = "layers.MaskedAveragePooling()"
    units = [256, 128, 64]
    net = DSSM(features, user_tower_units=units, item_tower_units=units, **settings)
elif model == "final_mlp":
    from FinalMLP.src.FinalMLP import FinalMLP
    net = FinalMLP(features, mlp1_hidden_units=HIDDEN, mlp2_hidden_units=HIDDEN, fs_hidden_units=[64], num_heads=10, **settings)
elif model == "wide_deep":
    from WideDeep.WideDeep_torch.src.WideDeep import WideDeep
    net = WideDeep(features, hidden_units=HIDDEN, **settings)
elif model == "deep_fm":
    from DeepFM.DeepFM_torch.src.DeepFM import DeepFM
    net = DeepFM(features, hidden_units=HIDDEN, **settings)
elif model == "dcn_v2":
    from DCNv2.src.DCNv2 import DCNv2
    net = DCNv2(features, parallel_dnn_hidden_units=HIDDEN, num_cross_layers=3, **settings)
elif model == "fm":
    from FM.src.FM import FM
    net = FM(features, **settings)
elif model == "lr":
    from LR.src.LR import LR
    net = LR(features, **settings)
else:
    sys.exit(f"no model `{model}`: din, dssm, final_mlp, wide_deep, deep_fm, dcn_v2, fm, lr")
if sys.argv[4:] == ["first"]:
    for part in net.modules():
        if isinstance(part, torch.nn.Embedding):
            torch.nn.init.uniform_(part.weight, -0.01, 0.01)
            part.weight.data[0] = 0          # padding
        elif isinstance(part, torch.nn.Linear) and part.in_features > 1:
            part.reset_parameters()
        elif isinstance(part, torch.nn.Linear) and part.out_features == 1:
            torch.nn.init.zeros_(part.weight)        # the linear weight of a dense feature

def cpu():
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))

def rows(part, shuffle):
    stage = "train" if part == "train" else "test"
    loaded = RankDataLoader(features, stage=stage, batch_size=BATCH, shuffle=shuffle, num_workers=0,
                            **{f"{part}_data": f"{folder}/{part}.npz"})
    return loaded[0] if stage == "train" else loaded

train = rows("train", True)
net._max_gradient_norm, net._eval_steps, net._total_steps, net._stop_training = 10.0, 1 << 40, 0, False      # as `fit` sets them
before = cpu()
net.train_epoch(train)
spent = cpu() - before
scores = net.evaluate(rows("test", False))
print(json.dumps({"model": model, "seed": int(seed), "values": "first" if sys.argv[4:] else "own", "rows": train.num_samples,
                  "cpu": round(spent, 1), "AUC": round(float(scores["AUC"]), 5), "logloss": round(float(scores["logloss"]), 5)}))
