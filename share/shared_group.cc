#include "share/shared_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "share/message.h"

namespace farpage::share {
namespace {

using nlohmann::json;

constexpr Milliseconds kNodePatience{5000};
constexpr char kGroup[] = "group/";
constexpr char kPeer[] = "peer/";

std::string text_of(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

bool is_among(const uffd::SharedFile& file, const std::vector<uffd::SharedFile>& files) {
  return std::ranges::any_of(files,
                             [&](const uffd::SharedFile& other) { return other.is_same(file); });
}

}  // namespace

Result<std::unique_ptr<SharedGroup>> SharedGroup::create(const Host& host,
                                                         std::vector<uffd::SharedFile> files) {
  FARPAGE_TRY(window, uffd::SharedWindow::create(std::move(files)));
  std::unique_ptr<SharedGroup> group(
      new SharedGroup(host, host.state.next_number(), std::move(window)));
  FARPAGE_TRY_VOID(group->note_group());
  return group;
}

SharedGroup::~SharedGroup() {
  pager_.reset();  // gives its region back
  for (const Peer& peer : peers_) host_.state.erase_other(peer_name(peer.member));
  host_.state.erase_other(group_name());
}

// ---- records ----

std::string SharedGroup::group_name() const {
  return fmt::format("{}{}", kGroup, number_);
}

std::string SharedGroup::peer_name(uint32_t member) const {
  return fmt::format("{}{}/{:06}", kPeer, number_, member);
}

Status SharedGroup::note_group(bool released) const {
  serve::OtherRecord record;
  for (const uffd::SharedFile& file : window_->files())
    record.descriptors.push_back(file.descriptor.get());
  record.text = text_of({{"served", is_served()},
                         {"released", released},
                         {"pages", window_->pages()},
                         {"program", program_},
                         {"pid", pid_}});
  return host_.state.put_other(group_name(), record);
}

Status SharedGroup::note_peer(const Peer& peer, int userfaultfd,
                              const std::vector<uffd::SharedMapping>& mappings) const {
  json list = json::array();
  for (const uffd::SharedMapping& mapping : mappings)
    list.push_back({mapping.address, mapping.run.first.value, mapping.run.pages});
  return host_.state.put_other(peer_name(peer.member),
                               {.descriptors = {peer.process.get(), peer.socket.get(), userfaultfd},
                                .text = text_of({{"member", peer.member},
                                                 {"pid", peer.pid},
                                                 {"program", peer.program},
                                                 {"mappings", list}})});
}

Result<std::vector<uint64_t>> SharedGroup::numbers(const serve::ServedState& state) {
  FARPAGE_TRY(records, state.others());
  std::vector<uint64_t> found;
  for (const auto& [name, record] : records)
    if (name.starts_with(kGroup)) found.push_back(std::stoull(name.substr(sizeof kGroup - 1)));
  return found;
}

Status SharedGroup::forget(const serve::ServedState& state, uint64_t number) {
  FARPAGE_TRY(records, state.others());
  for (const auto& [name, record] : records)
    if (name == fmt::format("{}{}", kGroup, number) ||
        name.starts_with(fmt::format("{}{}/", kPeer, number)))
      state.erase_other(name);
  return {};
}

// The records are of this build, or there would be none (ServedState::create()).
Result<std::unique_ptr<SharedGroup>> SharedGroup::resume(const Host& host, uint64_t number,
                                                         std::vector<Peer>& peers) {
  FARPAGE_TRY(records, host.state.others());
  const serve::OtherRecord& of_group = records.at(fmt::format("{}{}", kGroup, number));
  const json group_text = json::parse(of_group.text);
  struct Joined {
    Fd userfaultfd;
    std::vector<uffd::SharedMapping> mappings;
  };
  std::vector<Joined> joined;
  for (const auto& [name, record] : records) {
    if (!name.starts_with(fmt::format("{}{}/", kPeer, number))) continue;
    const json text = json::parse(record.text);
    peers.push_back({.member = text.at("member").get<uint32_t>(),
                     .process = Fd(record.descriptors.at(0)),
                     .socket = Fd(record.descriptors.at(1)),
                     .pid = text.at("pid").get<pid_t>(),
                     .program = text.at("program").get<std::string>()});
    joined.push_back({Fd(record.descriptors.at(2)), {}});
    for (const json& mapping : text.at("mappings"))
      joined.back().mappings.push_back(
          {mapping.at(0).get<uint64_t>(),
           {PageIndex{mapping.at(1).get<uint64_t>()}, mapping.at(2).get<uint32_t>()}});
  }
  std::vector<uffd::SharedFile> files;
  for (const int descriptor : of_group.descriptors) {
    FARPAGE_TRY(file, uffd::adopt_shared_file(Fd(descriptor)));
    files.push_back(std::move(file));
  }
  FARPAGE_TRY(window, uffd::SharedWindow::create(std::move(files)));
  std::unique_ptr<SharedGroup> group(new SharedGroup(host, number, std::move(window)));
  group->program_ = group_text.at("program").get<std::string>();
  group->pid_ = group_text.at("pid").get<pid_t>();
  if (group->window_->pages() != group_text.at("pages").get<uint64_t>())
    return fail(ErrorCode::kConflict, "a memfd has another size than when it was handed over");
  if (!group_text.at("served").get<bool>())
    return fail(ErrorCode::kConflict, "the pager was killed before it served them");
  for (size_t i = 0; i < joined.size(); ++i) {
    FARPAGE_TRY(userfaultfd, uffd::Userfaultfd::adopt_sent(std::move(joined[i].userfaultfd)));
    FARPAGE_TRY_VOID(group->window_->join(peers[i].member, std::move(userfaultfd),
                                          std::move(joined[i].mappings), peers[i].pid));
    group->next_member_ = std::max(group->next_member_, peers[i].member + 1);
  }
  if (group_text.at("released").get<bool>()) {
    FARPAGE_TRY_VOID(group->window_->unregister());
    peers.clear();
    return nullptr;
  }
  if (!host.engine.can_resume(number))
    return fail(ErrorCode::kConflict, "the pager was killed before it served them");
  pager::ResumeOptions options;
  static_cast<pager::TargetOptions&>(options) = group->target_options();
  FARPAGE_TRY(pager, host.engine.resume(options, group->owned_, {}));
  group->pager_ = std::move(pager);
  group->peers_ = std::move(peers);
  peers.clear();
  return group;
}

// ---- processes ----

bool SharedGroup::has_any(const std::vector<uffd::SharedFile>& files) const {
  return std::ranges::any_of(
      files, [this](const uffd::SharedFile& file) { return is_among(file, window_->files()); });
}

bool SharedGroup::has_all(const std::vector<uffd::SharedFile>& files) const {
  return std::ranges::all_of(
      files, [this](const uffd::SharedFile& file) { return is_among(file, window_->files()); });
}

Status SharedGroup::check_sizes(const std::vector<uffd::SharedFile>& files) const {
  for (size_t i = 0; i < files.size(); ++i)
    for (const uffd::SharedFile& known : window_->files())
      if (known.is_same(files[i]) && known.pages != files[i].pages)
        return fail(
            ErrorCode::kConflict,
            fmt::format("memfd {}: it had {} pages when it was handed over first, and has {}: "
                        "it must keep its size",
                        i, known.pages, files[i].pages));
  return {};
}

bool SharedGroup::has_mapped(pid_t pid, uint64_t begin, uint64_t end) const {
  return std::ranges::any_of(peers_, [&](const Peer& peer) {
    return peer.pid == pid && window_->has_mapped(peer.member, begin, end);
  });
}

std::vector<uffd::SharedMapping> SharedGroup::mappings_of(const HandedOver& process) const {
  std::vector<uffd::SharedMapping> mappings;
  const std::vector<uffd::SharedFile>& files = window_->files();
  for (const uffd::SharedClaim& claim : process.claims) {
    size_t file = 0;
    while (!files[file].is_same(process.files[claim.file])) ++file;
    const uint64_t first = window_->first_page(file).value + (claim.offset >> kPageShift);
    mappings.push_back(
        {claim.address, {PageIndex{first}, static_cast<uint32_t>(claim.bytes >> kPageShift)}});
  }
  return mappings;
}

Status SharedGroup::join(HandedOver& process) {
  const std::vector<uffd::SharedMapping> mappings = mappings_of(process);
  const int userfaultfd = process.userfaultfd.fd();
  Peer peer{next_member_, std::move(process.process), std::move(process.socket), process.pid,
            process.program};
  Status joined = note_peer(peer, userfaultfd, mappings);
  if (joined)
    joined = window_->join(peer.member, std::move(process.userfaultfd), mappings, process.pid);
  if (!joined) {
    host_.state.erase_other(peer_name(peer.member));
    process.socket = std::move(peer.socket);  // for the answer
    return joined;
  }
  ++next_member_;
  if (peers_.empty()) {
    program_ = peer.program;
    pid_ = peer.pid;
  }
  peers_.push_back(std::move(peer));
  return {};
}

pager::TargetOptions SharedGroup::target_options() const {
  return {.name = fmt::format("{}-{}", program_, pid_),
          .local_bytes = host_.local_bytes,
          .fork = pager::ForkMode::kRefuse,
          .number = number_};
}

Status SharedGroup::serve_if_complete() {
  if (is_served() || peers_.size() < host_.processes) return {};
  FARPAGE_TRY(pager, host_.engine.add(target_options(), std::move(owned_), kNodePatience, {}));
  pager_ = std::move(pager);
  FARPAGE_TRY_VOID(note_group());
  return pager_->adopt_present(0, window_->pages() << kPageShift);
}

void SharedGroup::leave(const Peer& peer) {
  const uint32_t member = peer.member;
  window_->leave(member);
  host_.state.erase_other(peer_name(member));
  std::erase_if(peers_, [&](const Peer& each) { return each.member == member; });
}

Status SharedGroup::release() {
  if (!is_served()) return {};
  FARPAGE_TRY_VOID(pager_->bring_back());
  FARPAGE_TRY_VOID(note_group(true));  // a registration that has ended cannot begin again
  return window_->unregister();
}

GroupReport SharedGroup::report() const {
  return {.program = program_, .pid = pid_, .stats = pager_->stats()};
}

}  // namespace farpage::share
