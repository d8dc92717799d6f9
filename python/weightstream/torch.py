"""What WeightStream has for eager PyTorch: ``ws.torch.offload`` runs an ``nn.Module`` whose weights do not fit on the device."""

from ._eager import Offloaded, offload

__all__ = ["Offloaded", "offload"]
