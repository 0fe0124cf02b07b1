#include "cli/coordinator_settings.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "base/size.h"
#include "cli/host_port.h"
#include "cli/named_values.h"
#include "coordinator/memory_store.h"
#include "coordinator/sqlite_store.h"
#include "http/json_reader.h"
#include "http/url.h"

namespace farpage::cli {
namespace {

std::optional<uint64_t> parse_quota(const std::string& name, const std::string& value) {
  const auto bytes = parse_size(value);
  if (!http::is_name(name) || !bytes) return std::nullopt;
  return *bytes;
}

std::optional<coordinator::KeptFree> parse_kept_free(const std::string& name,
                                                     const std::string& value) {
  if (!http::is_name(name) && name != coordinator::KeptFree::kOthers) return std::nullopt;
  if (!value.ends_with('%')) {
    const auto bytes = parse_size(value);
    if (!bytes) return std::nullopt;
    return coordinator::KeptFree{.bytes = *bytes};
  }
  const char* const end = value.data() + value.size() - 1;
  uint32_t percent = 0;
  const auto [stop, error] = std::from_chars(value.data(), end, percent);
  if (error != std::errc() || stop != end || percent < 1 || percent > 99) return std::nullopt;
  return coordinator::KeptFree{.percent = percent};
}

}  // namespace

void add_options(Subcommand& subcommand, CoordinatorSettings& settings) {
  subcommand.text("--listen", settings.listen, "Where to serve the REST API")
      .text("--store", settings.store,
            "What survives a restart: memory (nothing), or nodes, regions and leases: sqlite:PATH, "
            "or "
            "etcd:URL,URL for several coordinators, of which one leads")
      .text("--advertise", settings.advertise,
            "With etcd: http://host:port at which others reach this coordinator, if that is not "
            "--listen")
      .text("--token-file", settings.token_file,
            "File with the bearer token that callers must send, and that the coordinator sends to "
            "nodes",
            Subcommand::Scope::kShared)
      .flag("--insecure", settings.insecure, "Listen beyond loopback without a token")
      .duration("--node-ttl", settings.node_time_to_live,
                "Silence after which a node counts as lost; its leases stay valid")
      .duration("--region-ttl", settings.region_time_to_live,
                "Silence of a pager after which the slabs of its region are taken back")
      .text(
          "--spread-by", settings.spread_by,
          "Label of nodes: the replicas of a slab are on nodes with different values of it, unless "
          "a program asks for another label")
      .texts(
          "--quota", settings.quotas,
          "NAME=SIZE: what programs with this --borrower may have together, all replicas counted. "
          "Several times")
      .texts(
          "--keep-free", settings.keeps_free,
          "NAME=SIZE or NAME=PERCENT%: programs with this --borrower get no slab that would leave "
          "less free for others; *: those without an entry of their own. Several times")
      .number("--request-threads", settings.request_threads, 1, 1024, "Threads for requests")
      .number("--max-long-polls", settings.max_long_polls, 1, 1 << 20,
              "Calls of /v1/events that may wait at the same time")
      .text(
          "--backup", settings.backup,
          "Do not serve: copy the store of the coordinator that has these options, running or not, "
          "to this file")
      .text("--restore", settings.restore,
            "Do not serve: fill the store, which must be new, from this file of --backup")
      .choice("--output", settings.output, {"text", "json"},
              "Format of the line printed when ready", Subcommand::Scope::kShared);
}

Result<coordinator::ServiceOptions> service_options(const CoordinatorSettings& settings,
                                                    const std::string& token) {
  FARPAGE_TRY(listen, parse_host_port(settings.listen, "--listen"));
  if (settings.node_time_to_live.count() == 0 || settings.region_time_to_live.count() == 0)
    return fail(ErrorCode::kInvalid, "--node-ttl and --region-ttl must be longer than 0");
  if (!is_loopback(listen) && token.empty() && !settings.insecure)
    return fail(ErrorCode::kInvalid,
                fmt::format("--listen {} can be reached by others, and a coordinator hands out "
                            "memory: add --token-file, or --insecure on a network that you trust",
                            settings.listen));
  if (!settings.spread_by.empty() && !http::is_name(settings.spread_by))
    return fail(ErrorCode::kInvalid,
                fmt::format("--spread-by: '{}' is not the key of a label", settings.spread_by));
  const bool is_elected = etcd_of(settings.store).has_value();
  if (!settings.advertise.empty() && !is_elected)
    return fail(ErrorCode::kInvalid, "--advertise: only for --store etcd:");
  if (!settings.advertise.empty() && !http::parse_url(settings.advertise))
    return fail(ErrorCode::kInvalid, fmt::format("--advertise: '{}' is no URL: write "
                                                 "http://host:port",
                                                 settings.advertise));
  if (is_elected && settings.advertise.empty() && is_wildcard(listen))
    return fail(ErrorCode::kInvalid,
                fmt::format("--listen {} does not say where others reach this coordinator: add "
                            "--advertise http://host:port",
                            settings.listen));
  coordinator::ServiceOptions options;
  options.advertise = settings.advertise;
  FARPAGE_TRY(quotas, parse_named("--quota", settings.quotas, "is not NAME=SIZE, as in batch=64G",
                                  parse_quota));
  options.state.quotas = std::move(quotas);
  FARPAGE_TRY(keeps_free,
              parse_named("--keep-free", settings.keeps_free,
                          "is neither NAME=SIZE, as in batch=64G, nor NAME=PERCENT%, as in "
                          "batch=25% (1 to 99)",
                          parse_kept_free));
  options.state.keeps_free = std::move(keeps_free);
  options.state.spread_by = settings.spread_by;
  options.host = listen.host;
  options.port = listen.port;
  options.token = token;
  options.insecure = settings.insecure;
  options.request_threads = static_cast<uint32_t>(settings.request_threads);
  options.max_long_polls = static_cast<uint32_t>(settings.max_long_polls);
  options.state.node_time_to_live = settings.node_time_to_live;
  options.state.region_time_to_live = settings.region_time_to_live;
  return options;
}

Result<std::unique_ptr<coordinator::Store>> open_store(const std::string& text) {
  constexpr std::string_view kSqlite = "sqlite:";
  if (text == "memory") return coordinator::make_memory_store();
  if (text.rfind(kSqlite, 0) == 0 && text.size() > kSqlite.size())
    return coordinator::open_sqlite_store(text.substr(kSqlite.size()));
  return fail(ErrorCode::kInvalid,
              fmt::format("--store: '{}' is neither memory, sqlite:PATH nor etcd:URL,URL", text));
}

std::optional<std::string> etcd_of(const std::string& store) {
  constexpr std::string_view kEtcd = "etcd:";
  if (!store.starts_with(kEtcd)) return std::nullopt;
  return store.substr(kEtcd.size());
}

Result<std::shared_ptr<const coordinator::EtcdClient>> open_etcd(const std::string& urls) {
  auto client = coordinator::EtcdClient::create(urls);
  if (!client) return fail_with("--store etcd:", client.error());
  return std::shared_ptr<const coordinator::EtcdClient>(std::move(*client));
}

}  // namespace farpage::cli
