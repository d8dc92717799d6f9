// Linking the package is enough for the backend to be known.
#include <executorch/runtime/backend/interface.h>

#include <cstdio>

int main() {
  const bool known = executorch::runtime::get_backend_class("WeightStreamBackend") != nullptr;
  std::printf("WeightStreamBackend is %s\n", known ? "registered" : "missing");
  return known ? 0 : 1;
}
