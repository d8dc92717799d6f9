// Which delegates belong to which weightstream::Module. ExecuTorch gives a Module no way to reach its
// delegates. So a Module passes its number as a runtime spec, and the backend reports to it.
#pragma once

#include <executorch/runtime/core/data_loader.h>
#include <executorch/runtime/core/named_data_map.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "weightstream/src/ffi/bridge.rs.h"

namespace weightstream {

// Key of the spec that carries the number of a Module. Known to this adapter only.
inline constexpr const char* kModuleKey = "weightstream_module";

using LoadedPtr = std::shared_ptr<rust::Box<weightstream_bridge::Loaded>>;

// The weights of a session's program. ExecuTorch gives a Module that is made from another one's program no data of its
// own.
struct SessionWeights {
  std::unique_ptr<executorch::runtime::DataLoader> loader;
  std::unique_ptr<executorch::runtime::NamedDataMap> map;
};

// The delegates of one Module.
class Loads {
 public:
  void add(const LoadedPtr& loaded);

  // The delegate of `method`, or null.
  LoadedPtr find(const std::string& method);

  // One of the delegates, or null.
  LoadedPtr any();

  // The Module is a session over the program of this delegate, which it keeps.
  void begin_session(const LoadedPtr& first, SessionWeights weights);

  // That delegate, until the first one of the session's own is loaded; null if the Module is no session.
  LoadedPtr first();

  // The weights of a session, or null.
  const executorch::runtime::NamedDataMap* weights();

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<rust::Box<weightstream_bridge::Loaded>>> loads_;
  LoadedPtr first_;
  SessionWeights weights_;
};

// A new set and its number.
std::pair<int, std::shared_ptr<Loads>> open_loads();

// The set with this number, or null.
std::shared_ptr<Loads> loads_of(int number);

}  // namespace weightstream
