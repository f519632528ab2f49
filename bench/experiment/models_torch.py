# SPDX-License-Identifier: Apache-2.0
"""Models of torchvision, timm and transformers, and of PyTorch alone, with random weights: nothing is downloaded.

Each name has the makers that can give it, best first; the first whose package is there is used. Kinds of models matter
here, not their results: a vision transformer or a BERT that answers requests, a GPT or a ResNet in training.
"""

import importlib
import importlib.util
import sys

import torch

IMAGE = 224
PIECE = 1 << 30  # bytes of ballast that are allocated together


class Vit(torch.nn.Module):
    """A vision transformer of ViT-B/16's measures, for where no package has one."""

    def __init__(self, width=768, heads=12, layers=12, patch=16):
        super().__init__()
        self.patches = torch.nn.Conv2d(3, width, patch, patch)
        self.place = torch.nn.Parameter(0.02 * torch.randn(1, (IMAGE // patch)**2, width))
        layer = torch.nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True,
                                                 norm_first=True)
        self.blocks = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = torch.nn.Linear(width, 1000)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.place
        return self.head(self.blocks(x).mean(1))


class Gpt(torch.nn.Module):
    """A decoder of GPT-2's measures, for where transformers is missing."""

    def __init__(self, words=32768, width=768, heads=12, layers=12, length=1024):
        super().__init__()
        self.embed = torch.nn.Embedding(words, width)
        self.place = torch.nn.Parameter(0.02 * torch.randn(1, length, width))
        layer = torch.nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True,
                                                 norm_first=True)
        self.blocks = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = torch.nn.Linear(width, words, bias=False)
        self.register_buffer("mask", torch.nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, tokens):
        x = self.embed(tokens) + self.place[:, :tokens.shape[1]]
        return self.head(self.blocks(x, mask=self.mask, is_causal=True))


def timm_vit():
    import timm
    return timm.create_model("vit_base_patch16_224", pretrained=False)


def torchvision_vit():
    import torchvision
    return torchvision.models.vit_b_16(weights=None)


def torchvision_resnet():
    import torchvision
    return torchvision.models.resnet50(weights=None)


def timm_resnet():
    import timm
    return timm.create_model("resnet50", pretrained=False)


def transformers_bert():
    import transformers
    return transformers.BertModel(transformers.BertConfig())


def transformers_gpt():
    import transformers
    config = transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    return transformers.GPT2LMHeadModel(config)


def images(count):
    return torch.randn(count, 3, IMAGE, IMAGE)


def tokens(count, length, words=30000):
    return torch.randint(0, words, (count, length))


def output_of(result):
    """The tensor of a model's answer: packages wrap it, each in its own way."""
    for name in ("logits", "last_hidden_state"):
        if hasattr(result, name):
            return getattr(result, name)
    return result


# name: (makers as (package, function), what one input is)
SERVED = {
    "vit": ([("timm", timm_vit), ("torchvision", torchvision_vit), ("torch", Vit)], lambda: images(4)),
    "resnet": ([("torchvision", torchvision_resnet), ("timm", timm_resnet)], lambda: images(4)),
    "bert": ([("transformers", transformers_bert)], lambda: tokens(4, 128)),
    "torch-vit": ([("torch", Vit)], lambda: images(4)),
}
TRAINED = {
    "gpt": ([("transformers", transformers_gpt), ("torch", Gpt)], lambda: tokens(8, 1024)),
    "resnet": ([("torchvision", torchvision_resnet), ("timm", timm_resnet)], lambda: images(128)),
    "vit": ([("timm", timm_vit), ("torchvision", torchvision_vit), ("torch", Vit)], lambda: images(64)),
    "torch-gpt": ([("torch", Gpt)], lambda: tokens(8, 1024)),
}
# Products of matrices, as (side, products of a step): what saturates a GPU with the fewest launches, and what does not
# fill it; one kernel of 20 ms, and a graph of 100 ms (on an H200).
MATMUL = {"matmul": (8192, 10), "matmul-1024": (1024, 10), "matmul-20ms": (18432, 1), "matmul-graph": (8192, 60)}


def makers_of(name, table):
    """(package, maker) of a model's name, for the packages that can be imported, which takes seconds and no GPU. A
    package that is installed and broken is named and passed over: packages are often of versions that do not go
    together."""
    found = []
    for package, maker in table[name][0]:
        if importlib.util.find_spec(package) is None:
            continue
        try:
            importlib.import_module(package)
            if package == "transformers":  # which imports its parts when they are first asked for
                import transformers
                assert transformers.GPT2LMHeadModel and transformers.BertModel
        except Exception as error:  # whatever somebody else's package may raise
            print(f"{package} cannot be imported: {error}", file=sys.stderr)
            continue
        found.append((package, maker))
    if not found:
        wanted = ", ".join(package for package, _ in table[name][0])
        sys.exit(f"the model {name} needs one of these packages: {wanted}")
    return found


def prepare(role, name):
    if name not in MATMUL:
        makers_of(name, SERVED if role == "latency" else TRAINED)


def build(name, table):
    """(package, model on the GPU), of the first package that can make it."""
    makers = makers_of(name, table)
    for package, maker in makers:
        try:
            with torch.device("cuda"):
                return package, maker()
        except Exception as error:
            if maker is makers[-1][1]:
                raise
            print(f"{package} cannot make the model {name}: {error}", file=sys.stderr)
    raise AssertionError("the last maker's error has been raised")


class Mark:

    def __init__(self):
        self.event = torch.cuda.Event()

    def record(self):
        self.event.record()
        return self

    def wait(self):
        self.event.synchronize()


class OnGpu:
    """Common to both roles: ballast, and marks in the stream."""

    def __init__(self, what):
        self.what = what
        self.ballast = []

    def describe(self):
        return self.what

    def fill(self, share, total):
        """Ballast, so that it has `share` of the GPU's `total` bytes with what its model has taken: random words, for
        nothing but a copy brings them back. `total` 0: the bytes that the program sees."""
        total = total or torch.cuda.get_device_properties(0).total_memory
        for _ in range(int(share * total - torch.cuda.memory_reserved()) // PIECE):
            self.ballast.append(torch.randint(-2**31, 2**31 - 1, (PIECE // 4,), dtype=torch.int32, device="cuda"))

    def settle(self):
        torch.cuda.synchronize()


class Served(OnGpu):
    """A model that answers: input to the GPU, forward, result back."""

    def __init__(self, name):
        torch.manual_seed(1)
        package, model = build(name, SERVED)
        super().__init__(f"{name} of {package}, batch 4")
        self.model = model.eval()
        self.input = SERVED[name][1]().pin_memory()

    @torch.inference_mode()
    def request(self):
        return output_of(self.model(self.input.to("cuda", non_blocking=True))).cpu()


class Trained(OnGpu):
    """A training loop in bfloat16 (autocast), with AdamW."""

    def __init__(self, name):
        torch.manual_seed(2)
        package, model = build(name, TRAINED)
        self.model = model.train()
        self.inputs = [TRAINED[name][1]().to("cuda") for _ in range(2)]
        shape = self.inputs[0].shape
        super().__init__(f"training {name} of {package}, batch " + " x ".join(map(str, shape[:2] if len(shape) == 2
                                                                                else shape[:1])))
        self.is_text = len(shape) == 2
        self.labels = torch.randint(0, 1000, shape[:1], device="cuda")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        self.steps = 0

    def submit(self):
        data = self.inputs[self.steps % len(self.inputs)]
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            answer = output_of(self.model(data))
            if self.is_text:  # the next word of each
                answer, wanted = answer[:, :-1].flatten(0, 1), data[:, 1:].flatten()
            else:
                wanted = self.labels
            loss = torch.nn.functional.cross_entropy(answer, wanted)
        loss.backward()
        self.optimizer.step()
        if self.ballast:
            # A piece of the ballast changes with each step.
            self.ballast[self.steps % len(self.ballast)].add_(1)
        self.steps += 1
        return Mark().record()


class Matmul(OnGpu):

    def __init__(self, side, products, is_graph=False):
        super().__init__(f"{products} bfloat16 products of {side} x {side} matrices a step" +
                         (", as one graph" if is_graph else ""))
        self.a = torch.randn(side, side, device="cuda", dtype=torch.bfloat16)
        self.b = torch.empty_like(self.a)
        self.products = products
        self.steps = 0
        self.multiply()
        self.graph = None
        if is_graph:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.multiply()

    def multiply(self):
        for _ in range(self.products):
            torch.mm(self.a, self.a, out=self.b)

    def submit(self):
        if self.graph:
            self.graph.replay()
        else:
            self.multiply()
        if self.ballast:
            self.ballast[self.steps % len(self.ballast)].add_(1)
        self.steps += 1
        return Mark().record()


def make(role, name):
    if role == "latency":
        return Served(name)
    return Matmul(*MATMUL[name], name == "matmul-graph") if name in MATMUL else Trained(name)
