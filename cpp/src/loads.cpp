#include "loads.h"

#include <algorithm>
#include <unordered_map>

namespace weightstream {

namespace {

struct Numbers {
  std::mutex mutex;
  int next = 1;
  std::unordered_map<int, std::weak_ptr<Loads>> sets;
};

// Never destroyed: a Module may be loaded while the process ends.
Numbers& numbers() {
  static Numbers* const all = new Numbers();
  return *all;
}

template <typename Pointers>
void drop_expired(Pointers& pointers) {
  pointers.erase(
      std::remove_if(pointers.begin(), pointers.end(), [](const auto& pointer) { return pointer.expired(); }),
      pointers.end());
}

}  // namespace

void Loads::add(const LoadedPtr& loaded) {
  std::lock_guard<std::mutex> lock(mutex_);
  drop_expired(loads_);
  loads_.push_back(loaded);
}

LoadedPtr Loads::find(const std::string& method) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& candidate : loads_) {
    LoadedPtr loaded = candidate.lock();
    if (loaded != nullptr && std::string((*loaded)->method()) == method) {
      return loaded;
    }
  }
  return nullptr;
}

LoadedPtr Loads::any() {
  std::lock_guard<std::mutex> lock(mutex_);
  drop_expired(loads_);
  return loads_.empty() ? nullptr : loads_.front().lock();
}

void Loads::begin_session(const LoadedPtr& first, SessionWeights weights) {
  std::lock_guard<std::mutex> lock(mutex_);
  first_ = first;
  weights_ = std::move(weights);
}

const executorch::runtime::NamedDataMap* Loads::weights() {
  std::lock_guard<std::mutex> lock(mutex_);
  return weights_.map.get();
}

LoadedPtr Loads::first() {
  std::lock_guard<std::mutex> lock(mutex_);
  return first_;
}

std::pair<int, std::shared_ptr<Loads>> open_loads() {
  Numbers& all = numbers();
  std::lock_guard<std::mutex> lock(all.mutex);
  for (auto it = all.sets.begin(); it != all.sets.end();) {
    it = it->second.expired() ? all.sets.erase(it) : std::next(it);
  }
  auto loads = std::make_shared<Loads>();
  const int number = all.next++;
  all.sets.emplace(number, loads);
  return {number, loads};
}

std::shared_ptr<Loads> loads_of(int number) {
  Numbers& all = numbers();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.sets.find(number);
  return found == all.sets.end() ? nullptr : found->second.lock();
}

}  // namespace weightstream
