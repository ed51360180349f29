"""R1, "MoE" and "DeepSeekMoE"."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from parity_tests.facts import formulas as seed
from parity_tests.facts.record import Changed, Fact, default, defaults, gives
from parity_tests.facts.subjects import close, counted, ids, internals, model, operators, published, run, values, watch
from parity_tests.harness.hf import Absent, routing
from parity_tests.harness.lens import Lens

# --- MoE ---


def moe_seen(**changes: Any) -> Any:
    """A call of the first MoE of Mixtral. Releases before 5.0 name it otherwise."""
    net = model("Mixtral", **changes)
    path = "layers.0.mlp" if hasattr(net.layers[0], "mlp") else "layers.0.block_sparse_moe"
    return watch(net, path, input_ids=ids(5, rows=2))[0]


def experts_of(block: Any) -> list[tuple[Tensor, Tensor, Tensor]]:
    """(gate, up, down) of every expert, as (out, in)."""
    if hasattr(block.experts, "gate_up_proj"):
        return [
            (*gate_up.chunk(2), down) for gate_up, down in zip(block.experts.gate_up_proj, block.experts.down_proj, strict=True)
        ]
    names = ("w1", "w3", "w2") if hasattr(block.experts[0], "w1") else ("gate_proj", "up_proj", "down_proj")
    return [tuple(getattr(e, n).weight for n in names) for e in block.experts]  # pyright: ignore[reportReturnType]


def mixed(x: Tensor, w: Tensor, idx: Tensor, block: Any) -> Tensor:
    """Sum(w[i] * GatedFFN[idx[i]](x)), token by token, as the formula reads."""
    experts = experts_of(block)
    rows = [
        sum(w[n, i] * seed.gated(token, *experts[int(idx[n, i])]) for i in range(idx.shape[1])) for n, token in enumerate(x)
    ]
    return torch.stack(rows)  # pyright: ignore[reportArgumentType]


def mixtral_moe() -> bool:
    seen = moe_seen()
    x = seen.x.flatten(0, 1)
    p = (x @ seen.module.gate.weight.T).softmax(-1)
    w, idx = p.topk(2)
    w = w / w.sum(-1, keepdim=True)
    return close(seen.y.flatten(0, 1), mixed(x, w, idx, seen.module))


def softmax_and_topk() -> bool:
    logits = values("logits", 50, 8)
    w, idx = logits.softmax(-1).topk(2)
    top, other = logits.topk(2)
    return torch.equal(idx, other) and close(w / w.sum(-1, keepdim=True), top.softmax(-1))


def block_of(seen: Any) -> Any:
    def block(x: Tensor) -> Tensor:
        y = seen.module(x.clone())
        return y[0] if isinstance(y, tuple) else y

    return block


def tokens_apart() -> bool:
    """A token's output, alone in its batch, is what it is among others."""
    seen = moe_seen()
    block = block_of(seen)
    with Lens():
        alone = torch.stack([block(token[None, None])[0, 0] for token in seen.x.flatten(0, 1)])
    return close(alone, seen.y.flatten(0, 1))


def jitter() -> bool:
    """Noise on the input while training, none in evaluation."""
    seen = moe_seen(router_jitter_noise=0.3)
    block = block_of(seen)
    with Lens(), torch.random.fork_rng():
        torch.manual_seed(0)
        quiet = block(seen.x)
        seen.module.train()
        noisy = block(seen.x)
    return close(quiet, seen.y) and not torch.equal(noisy, seen.y)


def experts_run(experts: str | None) -> list[str]:
    """torch's operators while one token passes Mixtral's MoE, in float32: grouped_mm has no float64."""
    layer = model("Mixtral", experts=experts).float().layers[0]
    block = layer.mlp if hasattr(layer, "mlp") else layer.block_sparse_moe
    return operators(lambda: block(values("token", 1, 1, 24).float()))


def eager_loop(experts: str | None) -> bool:
    """One token, two experts of six: index_add_ runs once for each that was chosen."""
    added = experts_run(experts).count("index_add_.default")
    assert added == 2, f"index_add_ runs {added} times"
    return True


def grouped_by_default() -> bool:
    ran = experts_run(None)
    return any("grouped_mm" in name for name in ran) and "index_add_.default" not in ran


def losses(train: bool, **inputs: Any) -> Any:
    net = model("Mixtral", "ForCausalLM", router_aux_loss_coef=0.25)
    return run(net.train(train), input_ids=ids(6), labels=ids(6), **inputs)


def aux_loss_added() -> bool:
    plain, routed = losses(True), losses(True, output_router_logits=True)
    return close(routed.loss - plain.loss, 0.25 * routed.aux_loss, bar=1e-6)


def aux_loss_is_the_functions() -> bool:
    """n_experts * Sum(f_i * P_i): the share of choices that fell on an expert, times the mean of its probability, over all
    layers' tokens.
    """
    with counted(internals("Mixtral"), "load_balancing_loss_func") as spy:
        out = losses(True, output_router_logits=True)
    p = torch.cat([logits.double() for logits in out.router_logits]).softmax(-1)
    n = p.shape[-1]
    chosen = torch.nn.functional.one_hot(p.topk(2, -1).indices, n).double().sum(1)
    assert spy.call_count == 1, f"load_balancing_loss_func is called {spy.call_count} times"
    return close(out.aux_loss, n * (chosen.mean(0) * p.mean(0)).sum(), bar=1e-6)


def one_expert() -> bool:
    seen = moe_seen(num_experts_per_tok=1)
    x = seen.x.flatten(0, 1)
    chosen = (x @ seen.module.gate.weight.T).argmax(-1)
    assert len(set(chosen.tolist())) > 1, "all tokens chose one expert"
    return close(seen.y.flatten(0, 1), mixed(x, torch.ones(len(x), 1), chosen[:, None], seen.module))


MOE_FACTS = (
    Fact(
        id="moe-formula",
        place="R1, MoE",
        quote="p = Softmax(LinearRouter(x)) … w, idx = TopK(p, k=2) … w = w / Sum(w)",
        says="MixtralSparseMoeBlock weighs the top k experts by their renormalised probabilities",
        check=mixtral_moe,
    ),
    Fact(
        id="mixtral-experts",
        place="R1, MoE",
        quote="n_experts=8",
        says="Mixtral has 8 experts and chooses 2",
        check=defaults("Mixtral", num_local_experts=8, num_experts_per_tok=2),
    ),
    Fact(
        id="moe-tokens-apart",
        place="R1, MoE",
        quote="x 先被展平为 (batch*seq, d_model),每个 token 独立选专家",
        says="Each token chooses its experts independently of the others",
        check=tokens_apart,
    ),
    Fact(
        id="mixtral-router",
        place="R1, MoE",
        quote="LinearRouter: MixtralTopKRouter,d_model -> n_experts,没有 bias",
        says="The router maps d_model to n_experts and has no bias",
        check=lambda: [tuple(p.shape) for p in moe_seen().module.gate.parameters()] == [(6, 24)],
    ),
    Fact(
        id="mixtral-router-class",
        place="R1, MoE",
        quote="LinearRouter: MixtralTopKRouter",
        says="The class of Mixtral's router is MixtralTopKRouter",
        check=lambda: type(moe_seen().module.gate).__name__ == "MixtralTopKRouter",
        changed=Changed(until="5.0.0", now="it is a plain nn.Linear", check=lambda: type(moe_seen().module.gate) is nn.Linear),
    ),
    Fact(
        id="router-jitter",
        place="R1, MoE",
        quote="训练时可以对输入加 router_jitter_noise",
        says="router_jitter_noise disturbs the input while training, and only then",
        check=jitter,
    ),
    Fact(
        id="expert-is-gated-ffn",
        place="R1, MoE",
        quote="每个专家都是一个 GatedFFN",
        says="Each expert is a GatedFFN: with one chosen of all, the block gives that expert's output",
        check=one_expert,
    ),
    Fact(
        id="experts-stacked",
        place="R1, MoE",
        quote="gate_up_proj:(n_experts, 2*d_ff, d_model) 和 down_proj:(n_experts, d_model, d_ff)",
        says="The experts lie in gate_up_proj (n, 2 d_ff, d_model) and down_proj (n, d_model, d_ff)",
        check=gives(
            {"gate_up_proj": (6, 2 * 40, 24), "down_proj": (6, 24, 40)},
            lambda: {n: tuple(p.shape) for n, p in moe_seen().module.experts.named_parameters() if p.ndim == 3},
        ),
        changed=Changed(
            until="5.0.0",
            now="each expert is a module of its own, with w1, w3 and w2",
            check=lambda: len(moe_seen().module.experts) == 6,
        ),
    ),
    Fact(
        id="experts-eager-loop",
        place="R1, MoE",
        quote="前向时只遍历被选中的专家,用 index_add_ 把结果累加回去",
        says="HF's eager experts visit those that were chosen, and add up with index_add_",
        check=lambda: eager_loop("eager"),
    ),
    Fact(
        id="experts-default-loop",
        place="R1, MoE",
        quote="前向时只遍历被选中的专家,用 index_add_ 把结果累加回去",
        says="HF's default experts visit those that were chosen, and add up with index_add_",
        check=lambda: eager_loop(None),
        changed=Changed(
            since="5.0.0",
            now="the default is grouped_mm: one product over all chosen, and no index_add_",
            check=grouped_by_default,
        ),
    ),
    Fact(
        id="softmax-topk",
        place="R1, MoE",
        quote="先 Softmax 再 TopK 再归一化,等价于先 TopK 再对选中的 logits 做 Softmax",
        says="Softmax, top-k, renormalise equals top-k, softmax of the chosen logits",
        check=softmax_and_topk,
    ),
    Fact(
        id="aux-loss-function",
        place="R1, MoE",
        quote="由 load_balancing_loss_func 计算负载均衡辅助损失",
        says="load_balancing_loss_func computes the auxiliary loss (asked for: output_router_logits)",
        check=aux_loss_is_the_functions,
    ),
    Fact(
        id="aux-loss-added",
        place="R1, MoE",
        quote="乘 router_aux_loss_coef 加到总 loss",
        says="It is multiplied by router_aux_loss_coef and added to the loss",
        check=aux_loss_added,
    ),
    Fact(
        id="aux-loss-in-training",
        place="R1, MoE",
        quote="训练时由 load_balancing_loss_func 计算负载均衡辅助损失",
        says="Training computes the auxiliary loss",
        check=lambda: losses(True).aux_loss is not None,
        changed=Changed(
            now="output_router_logits decides, which is False by default; training or not is all the same",
            check=lambda: default("Mixtral", "output_router_logits") is False
            and losses(True).aux_loss is None
            and losses(False, output_router_logits=True).aux_loss is not None,
        ),
    ),
)


# --- DeepSeekMoE ---


def deepseek_seen(**changes: Any) -> Any:
    """A call of the first MoE of DeepSeek-V3, whose correction biases reach below -1, so that masked groups could win."""
    net = model("DeepseekV3", **changes)
    for layer in net.layers[1:]:
        bias = layer.mlp.gate.e_score_correction_bias
        bias.copy_(values("correction", len(bias)) - 1)
    return watch(net, "layers.1.mlp", input_ids=ids(9, rows=2))[0]


def routed(x: Tensor, gate: Any, n_group: int = 4, topk_group: int = 2, k: int = 3) -> tuple[Tensor, Tensor]:
    """The first four lines of the seed's formula: w and idx, both (tokens, k)."""
    s = torch.sigmoid(x @ gate.weight.T)
    biased = (s + gate.e_score_correction_bias).unflatten(-1, (n_group, -1))
    group = biased.topk(2)[0].sum(-1).topk(topk_group)[1]
    chosen = torch.zeros(len(x), n_group, dtype=torch.bool).scatter(1, group, True)
    idx = biased.masked_fill(~chosen[..., None], -torch.inf).flatten(1).topk(k)[1]
    w = s.gather(1, idx)
    return w / w.sum(-1, keepdim=True) * gate_factor(gate), idx


def gate_factor(gate: Any) -> float:
    return getattr(gate, "routed_scaling_factor", 2.5)


def shared(x: Tensor, block: Any) -> Tensor:
    ffn = block.shared_experts
    return seed.gated(x, ffn.gate_proj.weight, ffn.up_proj.weight, ffn.down_proj.weight)


def deepseek_moe() -> bool:
    seen = deepseek_seen()
    x = seen.x.flatten(0, 1)
    return close(seen.y.flatten(0, 1), shared(x, seen.module) + mixed(x, *routed(x, seen.module.gate), seen.module))


def tokens_of_deepseek_apart() -> bool:
    """Shared experts for each token, and those that the router says it chose, weighed as it says."""
    seen = deepseek_seen()
    x = seen.x.flatten(0, 1)
    with Lens():
        said = routing(seen.module.gate(seen.x))
    if said.weight is None or said.choice is None:
        raise Absent("this transformers' router does not say what it chose")
    return close(seen.y.flatten(0, 1), shared(x, seen.module) + mixed(x, said.weight, said.choice, seen.module))


def masked_with_zero() -> bool:
    """What older releases did: a masked group counts 0, which beats a negative score."""
    seen = deepseek_seen()
    x, gate = seen.x.flatten(0, 1), seen.module.gate
    s = torch.sigmoid(x @ gate.weight.T)
    biased = (s + gate.e_score_correction_bias).unflatten(-1, (4, -1))
    group = biased.topk(2)[0].sum(-1).topk(2)[1]
    chosen = torch.zeros(len(x), 4, dtype=torch.bool).scatter(1, group, True)
    idx = biased.masked_fill(~chosen[..., None], 0.0).flatten(1).topk(3)[1]
    w = s.gather(1, idx)
    return close(
        seen.y.flatten(0, 1),
        shared(x, seen.module) + mixed(x, w / w.sum(-1, keepdim=True) * 2.5, idx, seen.module),
    )


def scored(**changes: Any) -> tuple[Tensor, Tensor, Any]:
    """What is asked of the router, from its block's output alone: sigma, and the routed part of y."""
    seen = deepseek_seen(**changes)
    x = seen.x.flatten(0, 1)
    return x, seen.y.flatten(0, 1) - shared(x, seen.module), seen.module


def sigmoid_scores() -> bool:
    """All eight experts chosen: the weights are those of the sigmoids, and not those of a softmax."""
    x, y, block = scored(num_experts_per_tok=8, n_group=1, topk_group=1)
    logits = x @ block.gate.weight.T
    everyone = torch.arange(8).expand(len(x), -1)
    sigmoid, softmax = ((s / s.sum(-1, keepdim=True) * 2.5) for s in (logits.sigmoid(), logits.softmax(-1)))
    assert not torch.allclose(y, mixed(x, softmax, everyone, block)), "softmax gives the same"
    return close(y, mixed(x, sigmoid, everyone, block))


def bias_chooses_only() -> bool:
    """All chosen: other biases change nothing. Three chosen: they do."""
    differ = {}
    for k in (3, 8):
        seen = deepseek_seen(num_experts_per_tok=k, n_group=1, topk_group=1)
        before = seen.y
        seen.module.gate.e_score_correction_bias.copy_(values("other", 8))
        with Lens():
            differ[k] = float((seen.module(seen.x) - before).abs().max() / before.abs().max())
    assert differ[3] > 1e-3, "the bias does not choose"
    return differ[8] < 1e-11


def bias_is_no_parameter() -> bool:
    gate = model("DeepseekV3").layers[1].mlp.gate
    return "e_score_correction_bias" in dict(gate.named_buffers()) and [n for n, _ in gate.named_parameters()] == ["weight"]


def bias_after_training() -> tuple[Tensor, Tensor]:
    """Before and after a training step."""
    net = model("DeepseekV3", "ForCausalLM").train().float()
    bias = net.model.layers[1].mlp.gate.e_score_correction_bias
    before = bias.clone()
    for p in net.parameters():
        p.requires_grad_(True)
    net(input_ids=ids(6), labels=ids(6)).loss.backward()
    torch.optim.SGD(net.parameters(), lr=1.0).step()
    return before, bias


def groups_per_token() -> int:
    """The most groups that any token's experts come from, found from the router's own gradient-free choice."""
    x, y, block = scored()
    _, idx = routed(x, block.gate)
    assert close(y, mixed(x, *routed(x, block.gate), block)), "it chooses otherwise"
    return max(len(set((row // 2).tolist())) for row in idx)


def norm_topk(norm: bool) -> bool:
    x, y, block = scored(norm_topk_prob=norm)
    w, idx = routed(x, block.gate)
    if not norm:
        w = torch.sigmoid(x @ block.gate.weight.T).gather(1, idx) * 2.5
    return close(y, mixed(x, w, idx, block))


def shared_expert() -> bool:
    """With experts that give nothing, the block gives the shared expert's output for every token."""
    seen = deepseek_seen()
    for p in seen.module.experts.parameters():
        p.zero_()
    with Lens():
        y = seen.module(seen.x)
    assert seen.module.shared_experts.down_proj.weight.any(), "there is nothing to see"
    return close(y, shared(seen.x, seen.module))


SINCE_INF = {"until": "5.6.0", "now": "masked groups count 0, which beats a negative score", "check": masked_with_zero}


def group_scores() -> bool:
    """With groups of four, where the sum of two and the sum of all rank the groups differently."""
    seen = deepseek_seen(n_routed_experts=16)
    x, gate = seen.x.flatten(0, 1), seen.module.gate
    biased = (torch.sigmoid(x @ gate.weight.T) + gate.e_score_correction_bias).unflatten(-1, (4, 4))
    two, all_four = (score.topk(2)[1].sort()[0] for score in (biased.topk(2)[0].sum(-1), biased.sum(-1)))
    assert not torch.equal(two, all_four), "both rank alike here"
    return close(seen.y.flatten(0, 1), shared(x, seen.module) + mixed(x, *routed(x, gate), seen.module))


DEEPSEEK_FACTS = (
    Fact(
        id="deepseek-moe-formula",
        place="R1, DeepSeekMoE",
        quote="y = GatedFFN_shared(x) + Sum(w[i] * GatedFFN[idx[i]](x) for i in range(8))",
        says="DeepseekV3MoE computes what is written, negative correction biases included",
        check=deepseek_moe,
        changed=Changed(**SINCE_INF),
    ),
    *(
        Fact(
            id=f"deepseek-{name.replace('_', '-')}",
            place="R1, DeepSeekMoE",
            quote=quote,
            says=f"DeepSeek-V3's {name} is {value} by default",
            check=defaults("DeepseekV3", **{name: value}),
        )
        for name, value, quote in (
            ("n_routed_experts", 256, "as (tokens, n_routed=256)"),
            ("n_group", 8, "n_group=8"),
            ("topk_group", 4, "topk_group=4"),
            ("num_experts_per_tok", 8, "只在选中的组内选 8 个专家"),
            ("norm_topk_prob", True, "norm_topk_prob=True"),
            ("routed_scaling_factor", 2.5, "routed_scaling_factor=2.5"),
            ("n_shared_experts", 1, "n_shared_experts=1"),
            ("moe_intermediate_size", 2048, "moe_intermediate_size=2048"),
            ("intermediate_size", 18432, "dense FFN 的 18432"),
        )
    ),
    Fact(
        id="deepseek-sigmoid",
        place="R1, DeepSeekMoE",
        quote="打分用 Sigmoid 而不是 Softmax(scores = router_logits.sigmoid())",
        says="Scores are sigmoids, no softmax",
        check=sigmoid_scores,
    ),
    Fact(
        id="correction-bias",
        place="R1, DeepSeekMoE",
        quote="e_score_correction_bias,只影响选哪些专家,不影响专家的权重 w",
        says="e_score_correction_bias decides which experts, and not with what weight",
        check=bias_chooses_only,
    ),
    Fact(
        id="correction-bias-no-gradient",
        place="R1, DeepSeekMoE",
        quote="在梯度之外更新",
        says="It is no parameter, so that no gradient reaches it",
        check=bias_is_no_parameter,
    ),
    Fact(
        id="correction-bias-updated",
        place="R1, DeepSeekMoE",
        quote="它在训练中根据各专家负载在梯度之外更新",
        says="Training moves e_score_correction_bias according to the experts' load",
        check=lambda: not torch.equal(*bias_after_training()),
        changed=Changed(
            now="DeepSeek's own training does; transformers has nothing that would, and leaves it as it was loaded",
            check=lambda: torch.equal(*bias_after_training()),
        ),
    ),
    Fact(
        id="aux-loss-free",
        place="R1, DeepSeekMoE",
        quote="实现无辅助损失(aux-loss-free)的负载均衡",
        says="DeepSeek-V3 has no auxiliary loss, even where router logits are asked for",
        check=lambda: deepseek_aux_loss() is None,
    ),
    Fact(
        id="group-scores",
        place="R1, DeepSeekMoE",
        quote="每组用组内最高两个分数之和打分",
        says="A group's score is the sum of its two highest, and no sum of all",
        check=group_scores,
        changed=Changed(**SINCE_INF),
    ),
    Fact(
        id="group-limit",
        place="R1, DeepSeekMoE",
        quote="用来限制每个 token 跨越的设备数",
        says="The experts of a token come from topk_group groups at most",
        check=gives(2, groups_per_token),
        changed=Changed(**SINCE_INF),
    ),
    Fact(
        id="norm-topk",
        place="R1, DeepSeekMoE",
        quote="norm_topk_prob=True 时对选中的权重归一化,再乘 routed_scaling_factor=2.5",
        says="norm_topk_prob renormalises the chosen weights, which are then multiplied by 2.5",
        check=lambda: norm_topk(True) and norm_topk(False),
        changed=Changed(**SINCE_INF),
    ),
    Fact(
        id="shared-expert",
        place="R1, DeepSeekMoE",
        quote="共享专家:n_shared_experts=1,所有 token 都经过,与路由专家的结果直接相加",
        says="Every token passes the shared expert, whose output is added as it is",
        check=shared_expert,
    ),
    Fact(
        id="fine-grained",
        place="R1, DeepSeekMoE",
        quote="专家的 d_ff 为 moe_intermediate_size=2048,远小于 dense FFN 的 18432(细粒度专家)",
        says="An expert is 7168 -> 2048, a dense layer's FFN 7168 -> 18432",
        check=lambda: deepseek_widths() == (2048, 18432),
    ),
)


def deepseek_aux_loss() -> Any:
    net = model("DeepseekV3", "ForCausalLM")
    out = run(net.train(), input_ids=ids(5), labels=ids(5), output_router_logits=True)
    assert out.loss is not None, "there is no loss at all"
    return getattr(out, "aux_loss", None)


def deepseek_widths() -> tuple[int, int]:
    layers = published("DeepseekV3", num_hidden_layers=2, first_k_dense_replace=1, n_routed_experts=8, vocab_size=8).layers
    return layers[1].mlp.shared_experts.gate_proj.out_features, layers[0].mlp.gate_proj.out_features

FACTS = (*MOE_FACTS, *DEEPSEEK_FACTS)
