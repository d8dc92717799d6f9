import os, sys, torch, traceback
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch._subclasses.fake_tensor import FakeTensorMode
print("initialized", torch.cuda.is_initialized(), torch.cuda.is_available())
if len(sys.argv) > 1: torch.zeros(1, device="cuda")
pid = os.fork()
if pid == 0:
    os.environ["TORCH_CUDNN_SDPA_DEPRIORITIZED"] = "1"
    for n, v in {"is_available": True, "is_initialized": True, "device_count": 1, "current_device": 0, "_lazy_init": None, "_exchange_device": 0, "_maybe_exchange_device": 0}.items():
        setattr(torch.cuda, n, lambda *a, v=v, **k: v)
    from torch._subclasses import fake_tensor
    fake_tensor.init_gpu_context = lambda *a, **k: None
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), sdpa_kernel([SDPBackend.MATH]):
            q = torch.empty(1, 4, 8, 16, device="cuda", dtype=torch.bfloat16)
            m = torch.empty(1, 1, 8, 8, device="cuda", dtype=torch.bool)
            print("in child", F.scaled_dot_product_attention(q, q, q, attn_mask=m).shape)
    except Exception as e:
        traceback.print_exc()
    os._exit(0)
os.waitpid(pid, 0)
