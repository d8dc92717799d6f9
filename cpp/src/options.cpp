#include <locale>
#include <sstream>
#include <utility>

#include "errors.h"
#include "specs.h"
#include "weightstream/module.h"

namespace weightstream {

Options& Options::budget_bytes(std::uint64_t bytes) {
  return set("weight_offload_budget_bytes", std::to_string(bytes));
}

Options& Options::budget_mb(int mb) { return set("weight_offload_budget_mb", mb); }

Options& Options::budget_auto() { return set("weight_offload_budget", std::string("auto")); }

Options& Options::budget_shared() { return set("weight_offload_budget", std::string("shared")); }

Options& Options::priority(int priority) { return set("weight_offload_priority", priority); }

Options& Options::host(const std::string& mode) { return set("weight_offload_host", mode); }

Options& Options::staging_mb(int mb) { return set("weight_offload_staging_mb", mb); }

Options& Options::gather(const std::string& mode) { return set("weight_offload_gather", mode); }

Options& Options::link_gbps(double rate) {
  // As a string: ExecuTorch has no options that are fractions. With a point, whatever the program's locale.
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text << rate;
  return set("weight_offload_link_gbps", text.str());
}

Options& Options::link_auto() { return set("weight_offload_link_gbps", std::string("auto")); }

Options& Options::kernel_times(const std::string& path) { return set("weight_offload_kernel_times", path); }

Options& Options::device(int index) { return set("weight_offload_device", index); }

Options& Options::policy(const std::string& name) { return set("weight_offload_policy", name); }

Options& Options::verify(const std::string& when) { return set("weight_offload_verify", when); }

Options& Options::sync(bool on) { return set("weight_offload_sync", on); }

Options& Options::cuda_graph(bool on) { return set("weight_offload_cuda_graph", on); }

Options& Options::graph_mb(int mb) { return set("weight_offload_graph_mb", mb); }

Options& Options::graph_shapes(const std::string& shapes) { return set("weight_offload_graph_shapes", shapes); }

Options& Options::method_share(const std::string& shares) { return set("weight_offload_method_share", shares); }

Options& Options::pin(const std::string& patterns) { return set("weight_offload_pin", patterns); }

Options& Options::stream(const std::string& patterns) { return set("weight_offload_stream", patterns); }

Options& Options::concurrent(const std::string& what) { return set("weight_offload_concurrent", what); }

Options& Options::pte_sha256(const std::string& hex) { return set("weight_offload_pte_sha256", hex); }

Options& Options::set(const std::string& key, Value value) {
  specs_.emplace_back(key, std::move(value));
  return *this;
}

executorch::runtime::Error Options::check() const {
  using executorch::runtime::Error;
  try {
    weightstream_bridge::check_options(to_specs(specs_));
    return Error::Ok;
  } catch (const rust::Error&) {
    return to_error(static_cast<ws_status>(weightstream_bridge::last_status()));
  } catch (const std::exception& error) {  // a text that is not UTF-8
    weightstream_bridge::set_error(std::string("an option: ") + error.what());
    return Error::InvalidArgument;
  }
}

}  // namespace weightstream
