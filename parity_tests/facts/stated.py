"""What the seeds state and no program here can assert: history, experience with trained models, taste. Each with why."""

from __future__ import annotations

from dataclasses import dataclass

TRAINING = "it is about how training goes, which takes models trained for it"
HISTORY = "it is history, or what a paper reports of its own experiments"
HARDWARE = "it is about the speed or the kernels of machines and engines that are not here"
TASTE = "it is a judgement, or advice for interviews"
MEANING = "it is an image that helps to think, and has no number"


@dataclass(frozen=True)
class Stated:
    """place: seed and section. quote: the seed's own words, short. why: the reason that it is not asserted."""

    place: str
    quote: str
    why: str


STATED = (
    Stated("R1, MHA", "防止点积过大导致 Softmax 饱和", TRAINING),
    Stated("R1, MHA", "随机丢弃一些注意力权重,防止过拟合", TRAINING),
    Stated("R1, CrossAttention", "屏蔽它反而会让训练与推理不一致", TRAINING),
    Stated("R1, MQA / GQA", "FlashAttention 等 kernel 内部按组索引,不会真的复制", HARDWARE),
    Stated("R1, MLA", "推理框架(vLLM、SGLang、FlashMLA)会做矩阵吸收", HARDWARE),
    Stated("R1, Qwen3Attention", "用来抑制 attention logits 过大", TRAINING + "; that they are bounded is asserted"),
    Stated("R1, DeepSeekMoE", "它在训练中根据各专家负载在梯度之外更新", TRAINING + "; transformers has no such update"),
    Stated("R1, DeepSeekMoE", "用来限制每个 token 跨越的设备数", HARDWARE),
    Stated("R1, LayerNorm / RMSNorm", "去掉了减均值和 bias,计算更省", HARDWARE),
    Stated("R1, Sinusoidal PE", "放大 Embedding,避免被 PE 淹没", TRAINING),
    Stated("R1, Sinusoidal PE", "原论文认为它可以外推到训练时没见过的长度,但实际外推效果并不好", TRAINING),
    Stated("R1, 可学习 PE", "原论文对比过可学习 PE 和 Sinusoidal PE,两者效果几乎相同", HISTORY),
    Stated("R1, 可学习 PE", "模型需要自己学着从中分离出相对距离", TRAINING + "; that there are four terms is asserted"),
    Stated("R1, RoPE", "前后两半配对用的是连续切片,比 ::2 的跨步访问更适合硬件", HARDWARE),
    Stated("R1, RoPE", "前几对转得快、区分相邻 token,后几对转得慢、编码远距离", MEANING + "; the frequencies are asserted"),
    Stated("R1, Token Mixing 与 Channel Mixing", "术语来自 MLP-Mixer(2021)", HISTORY),
    Stated("R1, Token Mixing 与 Channel Mixing", "PoolFormer 只用池化就能达到与 ViT 相当的精度", TRAINING),
    Stated("R1, Token Mixing 与 Channel Mixing", "语言建模需要精确检索并复制 token,softmax attention 很难被替代", TRAINING),
    Stated("R1, Token Mixing 与 Channel Mixing", "不同 token 处于不同的语义空间,内积相似度没有意义", TRAINING),
    Stated("R2, 前言", "Transformer 在 MLSys 相关面试中,被问到的概率极高", TASTE),
    Stated("R2, 1.1", "queen(皇后)= king(国王)- man(男人)+ woman(女人)", TRAINING),
    Stated("R2, 1.1", "已有许多成熟的词嵌入方法,如 Word2Vec,可以直接使用", HISTORY),
    Stated("R2, 1.1", "RNN 由于顺序计算的特性,难以并行加速,计算效率较低", HARDWARE),
    Stated("R2, 1.1", "QKV 的概念可以类比为 Key-Value 数据结构", MEANING),
    Stated("R2, 1.2", "我们需要一个额外的线性变换进行信息融合", MEANING + "; the projection is asserted"),
    Stated("R2, 1.4", "Layer Norm 更合理", TASTE + "; what each of the two normalises is asserted"),
    Stated("R2, 2.2", "残差连接用于缓解深层网络的梯度消失问题,最早在 ResNet 中广泛应用", HISTORY),
    Stated("R2, 2.2", "提供非线性映射,增强局部表示能力,提升模型容量", TRAINING),
    Stated("R2, 3.2", "Encoder-Only 擅长理解任务,但生成能力天生不足", TRAINING),
    Stated("R2, 3.2", "Encoder 侧的低秩问题,表达能力降低", TRAINING + "; the rank of the weights of attention is asserted"),
    Stated("R2, 3.2", "Decoder-Only 更适合 Zero-Shot", TRAINING),
    Stated("R2, 3.3", "LLaMA 是目前为止,效果最好的开源 LLM 之一", TASTE),
    Stated("R2, 3.3", "可以减少约 7%∼64% 的计算时间", HISTORY),
    Stated("R2, 3.3", "SwiGLU 使梯度更平滑,提高训练效果", TRAINING),
    Stated("R2, 3.3", "RoPE 提高长文本建模能力", TRAINING),
    Stated("R2, 3.3", "为了提高训练的稳定性,LLaMA 改用 Pre-Norm", TRAINING),
    Stated("R2, 4", "手写 MHA 是 Transformer 相关面试中常见的考点", TASTE),
)
