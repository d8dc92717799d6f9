"""Models of transformers and diffusers as people call them, offloaded: small configurations, random weights.

Runs on the CPU, and on a GPU with WEIGHTSTREAM_TEST_DEVICE=cuda. The reference is the same model, all of it on the device.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import weightstream as ws
from device_under_test import ON_GPU, exact_products
from support import error_of
from test_offload import DEVICE
from torch import nn

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.no_export
#: Weights of several pages, so that something streams.
WIDTH = 1024 if ON_GPU else 32
SMALL: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 2 * WIDTH,
    "intermediate_size": 4 * WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GREEDY: dict[str, Any] = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}


@pytest.fixture(autouse=True)
def _inference():
    exact_products()
    with torch.no_grad():
        yield


def ids(length: int = 7) -> torch.Tensor:
    return torch.randint(3, 128, (1, length), generator=torch.Generator().manual_seed(length))


def made(cls: str, config: Any) -> nn.Module:
    torch.manual_seed(0)
    return getattr(transformers, cls)(config).eval()


def llama() -> nn.Module:
    return made("LlamaForCausalLM", transformers.LlamaConfig(**SMALL))


def bart() -> nn.Module:
    sizes = {
        f"{side}_{what}": n
        for side in ("encoder", "decoder")
        for what, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 2 * WIDTH))
    }
    config = transformers.BartConfig(vocab_size=128, d_model=WIDTH, max_position_embeddings=64, decoder_start_token_id=2, **sizes)
    return made("BartForConditionalGeneration", config)


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=128, d_model=WIDTH, d_kv=8, d_ff=2 * WIDTH, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    return made("T5ForConditionalGeneration", config)


def whisper() -> nn.Module:
    sizes = {
        f"{side}_{what}": n
        for side in ("encoder", "decoder")
        for what, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 2 * WIDTH))
    }
    tokens = {
        "decoder_start_token_id": 3,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "suppress_tokens": [],
        "begin_suppress_tokens": [],
    }
    config = transformers.WhisperConfig(
        vocab_size=128, d_model=WIDTH, num_mel_bins=8, max_source_positions=16, max_target_positions=32, **sizes, **tokens
    )
    return made("WhisperForConditionalGeneration", config)


def llava() -> nn.Module:
    vision = transformers.CLIPVisionConfig(
        hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=8
    )
    text = transformers.LlamaConfig(**SMALL)
    config = transformers.LlavaConfig(vision_config=vision, text_config=text, image_token_id=127, image_seq_length=4)
    return made("LlavaForConditionalGeneration", config)


def clip() -> nn.Module:
    sizes = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {**sizes, "vocab_size": 128, "max_position_embeddings": 32, "eos_token_id": 2}
    vision = {**sizes, "image_size": 16, "patch_size": 8}
    return made("CLIPModel", transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16))


def picture(channels: int = 3) -> torch.Tensor:
    return torch.rand(1, channels, 16, 16, generator=torch.Generator().manual_seed(1))


def pooled(found: Any) -> torch.Tensor:
    return found if isinstance(found, torch.Tensor) else found.pooler_output


def with_picture(model: nn.Module) -> torch.Tensor:
    prompt = torch.cat([torch.full((1, 4), 127), ids()], 1).to(model.device)
    return model.generate(prompt, pixel_values=picture().to(model.device), **GREEDY)


#: What people do with a model: `inputs.to(model.device)`, as every model card has it.
USES: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], torch.Tensor]]] = {
    "generate": (llama, lambda m: m.generate(ids().to(m.device), **GREEDY)),
    "generate, inputs on the CPU": (llama, lambda m: m(ids().to("cpu" if m.lm_head.weight.device.type == "cpu" else DEVICE)).logits),
    "beams": (llama, lambda m: m.generate(ids().to(m.device), num_beams=3, **GREEDY)),
    "a static cache": (llama, lambda m: m.generate(ids().to(m.device), cache_implementation="static", disable_compile=True, **GREEDY)),
    "embeddings of the caller": (
        llama,
        lambda m: m.generate(inputs_embeds=m.get_input_embeddings()(ids().to(m.device)), **GREEDY),
    ),
    "a decoder without its head": (llama, lambda m: m.model(ids().to(m.device)).last_hidden_state),
    "bart": (bart, lambda m: m.generate(ids().to(m.device), **GREEDY)),
    "t5": (t5, lambda m: m.generate(ids().to(m.device), **GREEDY)),
    "the encoder of t5": (t5, lambda m: m.encoder(ids().to(m.device)).last_hidden_state),
    "whisper": (whisper, lambda m: m.generate(torch.rand(1, 8, 32, generator=torch.Generator().manual_seed(0)).to(m.device), **GREEDY)),
    "a picture and words": (llava, with_picture),
    "features of words": (clip, lambda m: pooled(m.get_text_features(ids().to(m.device)))),
    "features of pictures": (clip, lambda m: pooled(m.get_image_features(picture().to(m.device)))),
    "pictures and words": (
        clip,
        lambda m: m(input_ids=ids().to(m.device), pixel_values=picture().to(m.device)).logits_per_image,
    ),
}


@pytest.mark.parametrize("use", USES)
def test_a_model_as_people_use_it(use):
    make, call = USES[use]
    model = make()
    wanted = call(copy.deepcopy(model).to(DEVICE))
    cls = type(model)
    for budget in (None, 1 << 30):
        with ws.torch.offload(model, budget=budget, device=DEVICE) as handle:
            assert model.device == torch.device(DEVICE)
            assert isinstance(model, cls)
            assert (type(model).__name__, type(model).__module__) == (cls.__name__, cls.__module__)
            for _ in range(3):
                assert torch.equal(call(model), wanted)
            assert next(model.parameters()).device.type == "cpu"
            stats = handle.stats()
            assert stats["resident"] or budget is None
            # The first step of an encoder-decoder reads what later steps keep in a cache: another order, once a call.
            assert stats["astray"] <= 4
        assert type(model) is cls
        assert model.device.type == "cpu"


@pytest.mark.parametrize("use", USES)
def test_packed_weights_compute_the_same_bits(use, monkeypatch):
    monkeypatch.setattr("weightstream._eager.packed._LEAST", 1 << 11)
    make, call = USES[use]
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = make().bfloat16()
        wanted = call(copy.deepcopy(model).to(DEVICE))
        with ws.torch.offload(model, packed=True, device=DEVICE) as handle:
            for share in (0, 0.4, 0.8, 4):
                if share:
                    floor = handle.stats()["floor_bytes"]
                    handle.set_budget(floor + int(share * sum(p.nbytes for p in model.parameters())))
                for _ in range(2):
                    assert torch.equal(call(model), wanted)
            assert handle.stats()["packed_bytes"] > 0
    finally:
        torch.set_default_dtype(before)


def test_a_model_stays_where_it_runs():
    model = llama()
    with ws.torch.offload(model, device=DEVICE):
        assert model.to(DEVICE) is model
        assert model.to(model.device) is model
        for move in (lambda: model.to("meta"), model.half, lambda: model.to(dtype=torch.bfloat16), lambda: model._apply(lambda t: t * 2)):
            text = error_of(move)
            assert "remove() its handle first" in text
            assert "is offloaded and runs on" in text
        whole = nn.ModuleDict({"it": model, "more": nn.Linear(2, 2)})
        whole.to(DEVICE)
        assert next(model.parameters()).device.type == "cpu"
    assert model.half().dtype == torch.float16


def unet() -> nn.Module:
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    blocks = {"down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"), "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D")}
    return diffusers.UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=4,
        cross_attention_dim=32,
        attention_head_dim=4,
        **blocks,
    ).eval()


def vae() -> nn.Module:
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    model = diffusers.AutoencoderKL(block_out_channels=(16, 32), norm_num_groups=4, sample_size=16, **blocks).eval()
    model.tile_latent_min_size, model.tile_sample_min_size = 4, 8
    return model


@pytest.mark.parametrize("how", ["whole", "tiling", "slicing"])
def test_a_decoder_of_pictures(how):
    model = vae()
    x = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(2)).to(DEVICE)

    def call(one: nn.Module) -> list[torch.Tensor]:
        if how != "whole":
            getattr(one, f"enable_{how}")()
        return [one.decode(x).sample, one.encode(torch.cat([picture()] * 2).to(DEVICE)).latent_dist.mean]

    wanted = call(copy.deepcopy(model).to(DEVICE))
    with ws.torch.offload(model, device=DEVICE) as handle:
        for _ in range(3):
            assert all(torch.equal(a, b) for a, b in zip(call(model), wanted, strict=True))
        assert handle.stats()["entries"].keys() == {"encoder", "quant_conv", "post_quant_conv", "decoder"}


def test_a_network_of_steps():
    model = unet()
    given = (torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(3)), torch.tensor([3]), torch.ones(1, 5, 32))
    wanted = copy.deepcopy(model).to(DEVICE)(*(x.to(DEVICE) for x in given)).sample
    with ws.torch.offload(model, device=DEVICE):
        for _ in range(3):
            assert torch.equal(model(*given).sample, wanted)


def test_a_whole_pipeline():
    """`pipe(...)` unchanged: three encoders and decoders that run once, a transformer that runs every step."""
    pytest.importorskip("diffusers")
    from pipeline import build, pictures

    pipe, wanted = build(), pictures(build().to(DEVICE))
    with ws.torch.offload(pipe, device=DEVICE) as handle:
        assert pipe._execution_device == pipe.device == torch.device(DEVICE)
        assert pipe.to(DEVICE) is pipe
        for _ in range(2):
            assert torch.equal(pictures(pipe), wanted)
        entries = handle.stats()["entries"]
        assert {"text_encoder", "text_encoder_2", "transformer", "vae.decoder"} <= entries.keys()
        assert entries["transformer"]["passes"] == 2 * 4 - 1
        handle.set_budget(1 << 30)
        for _ in range(2):
            assert torch.equal(pictures(pipe), wanted)
        assert handle.stats()["resident"]
    assert pipe.transformer.device.type == "cpu"
    assert torch.equal(pictures(pipe.to(DEVICE)), wanted)


@pytest.mark.parametrize("example", ["pipeline", "chat", "quantized", "from_disk"])
def test_the_examples_run(example, capsys):
    import importlib

    importlib.import_module(example).main([DEVICE])
    assert "the same as without offloading" in capsys.readouterr().out
