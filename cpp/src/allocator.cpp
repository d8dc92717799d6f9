// ExecuTorch's memory of CUDA devices, for programs whose tensors it plans there: glue over the Rust side.

#include <executorch/runtime/core/device_allocator.h>

#include <mutex>

#include "guarded.h"
#include "weightstream/backend.h"

namespace weightstream {

namespace et = executorch::runtime;
namespace rs = weightstream_bridge;
using et::Error;
using et::etensor::DeviceIndex;
using et::etensor::DeviceType;

namespace {

rs::Place place(const void* address, std::size_t bytes, DeviceIndex index) {
  return {reinterpret_cast<std::size_t>(address), bytes, static_cast<std::int32_t>(DeviceType::CUDA), index};
}

// Copies are done when they return. The Rust side serves any number of threads.
class CudaAllocator final : public et::DeviceAllocator {
 public:
  et::Result<void*> allocate(std::size_t nbytes, DeviceIndex index, std::size_t alignment) override {
    void* memory = nullptr;
    const Error error = guarded("allocating device memory failed", [&] {
      memory = reinterpret_cast<void*>(rs::device_allocate(index, nbytes, alignment));
    });
    if (error != Error::Ok) {
      return error;
    }
    return memory;
  }

  void deallocate(void* memory, DeviceIndex index) override {
    if (memory != nullptr) {
      // Nobody can be told; it was logged.
      (void)guarded("freeing device memory failed",
                    [&] { rs::device_free(index, reinterpret_cast<std::size_t>(memory)); });
    }
  }

  Error copy_host_to_device(void* dst, const void* src, std::size_t nbytes, DeviceIndex index) override {
    return guarded("copying to device memory failed", [&] {
      rs::device_copy_in(place(dst, nbytes, index), {static_cast<const std::uint8_t*>(src), nbytes});
    });
  }

  Error copy_device_to_host(void* dst, const void* src, std::size_t nbytes, DeviceIndex index) override {
    return guarded("copying from device memory failed",
                   [&] { rs::device_copy_out({static_cast<std::uint8_t*>(dst), nbytes}, place(src, nbytes, index)); });
  }

  DeviceType device_type() const override { return DeviceType::CUDA; }
};

}  // namespace

bool register_cuda_allocator() {
  static std::mutex mutex;
  // Never destroyed: ExecuTorch keeps the pointer until the process ends.
  static CudaAllocator* const allocator = new CudaAllocator();
  const std::lock_guard<std::mutex> lock(mutex);
  // A second registration would end the process.
  if (et::get_device_allocator(DeviceType::CUDA) == nullptr) {
    et::register_device_allocator(allocator);
  }
  return et::get_device_allocator(DeviceType::CUDA) == allocator;
}

}  // namespace weightstream
