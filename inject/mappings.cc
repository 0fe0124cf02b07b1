#include "inject/mappings.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "base/maps_line.h"

namespace farpage::inject {
namespace {

// Anonymous and rw-p, as far as maps tells.
bool is_candidate(const MapsLine& line) {
  if (line.access != "rw-p" || line.inode != 0) return false;
  // Another name in brackets is the kernel's own.
  return line.name.empty() || line.name == "[heap]" || line.name.starts_with("[anon:") ||
         line.name.starts_with("[stack:");
}

// Each of these is two letters in VmFlags. uw, um, ui: registered with a userfaultfd (write
// protection, missing, minor): ours is not looked at here.
constexpr std::string_view kUnfit[] = {"io", "pf", "ht", "lo", "ss", "dp", "wf", "gd", "mm", "sh"};

bool has_flag(std::string_view flags, std::string_view flag) {
  for (size_t at = flags.find(flag); at != std::string_view::npos; at = flags.find(flag, at + 1))
    if (at % 3 == 0) return true;
  return false;
}

// `guarded`: what lies directly below has no access. MAP_STACK is no flag of its own, but gives
// "nh" since Linux 6.7: so a stack of a thread is also never joined with other memory.
bool are_fit(std::string_view flags, bool guarded) {
  if (guarded && has_flag(flags, "nh")) return false;
  return std::ranges::none_of(kUnfit,
                              [&](std::string_view unfit) { return has_flag(flags, unfit); });
}

}  // namespace

EligibleMappings::EligibleMappings(const ProcessFiles& process, std::span<const AddressRange> own,
                                   const MappingOptions& options)
    : process_(process), own_(own.begin(), own.end()), options_(options) {}

bool EligibleMappings::is_own(const AddressRange& range) const {
  return std::ranges::any_of(own_, [&](const AddressRange& own) {
    return own.begin < range.end && range.begin < own.end;
  });
}

// Of the first judged mapping that lies in it.
std::optional<bool> EligibleMappings::verdict_of(const AddressRange& range) const {
  const auto found = verdicts_.lower_bound(range.begin);
  if (found == verdicts_.end() || found->second.end > range.end) return std::nullopt;
  return found->second.eligible;
}

// The program changes its mappings between the two files, so a mapping may be a part of one that
// was judged, or several of them.
std::optional<bool> EligibleMappings::is_fit(const AddressRange& range) const {
  auto judged = verdicts_.upper_bound(range.begin);
  if (judged != verdicts_.begin() && std::prev(judged)->second.end > range.begin) --judged;
  std::optional<bool> fit;
  for (; judged != verdicts_.end() && judged->first < range.end; ++judged) {
    if (!judged->second.eligible) return false;
    fit = true;
  }
  return fit;
}

Status EligibleMappings::read_flags(const std::string& locked) {
  const Instant start = SteadyClock::read();
  if (start < next_read_) return {};
  FARPAGE_TRY(smaps, process_.read("smaps"));
  if (smaps.empty()) return {};  // the process ends
  verdicts_.clear();
  locked_ = locked;
  std::optional<AddressRange> candidate;
  uint64_t without_access_end = 0;  // of the mapping before, if it has no access
  bool guarded = false;
  for_each_line(smaps, [&](std::string_view line) {
    constexpr std::string_view kFlags = "VmFlags: ";
    // Lines of values begin with a capital letter, those of mappings with a hexadecimal digit.
    if (line.empty()) return;
    if (line[0] >= 'A' && line[0] <= 'Z') {
      if (candidate && line.starts_with(kFlags))
        verdicts_[candidate->begin] = {candidate->end,
                                       are_fit(line.substr(kFlags.size()), guarded)};
      return;
    }
    candidate.reset();
    const std::optional<MapsLine> mapping = parse_maps_line(line);
    if (!mapping) return;
    guarded = mapping->begin == std::exchange(without_access_end, 0);
    if (mapping->access.starts_with("---")) without_access_end = mapping->end;
    if (is_candidate(*mapping)) candidate = AddressRange{mapping->begin, mapping->end};
  });
  const Instant now = SteadyClock::read();
  const double spent_ns = static_cast<double>((now - start).count());
  next_read_ = now + Nanoseconds(static_cast<int64_t>(spent_ns * (1 / options_.max_share - 1)));
  return {};
}

Result<std::vector<AddressRange>> EligibleMappings::look() {
  const std::string locked = process_.status_field("status", "VmLck").value_or("");
  FARPAGE_TRY(maps, process_.read("maps"));
  if (maps.empty()) return fail(ErrorCode::kNotFound, process_.described() + " has ended");
  std::vector<AddressRange> candidates;
  small_.clear();
  bool all_known = locked == locked_;
  for_each_line(maps, [&](std::string_view line) {
    const std::optional<MapsLine> mapping = parse_maps_line(line);
    if (!mapping || !is_candidate(*mapping)) return;
    const AddressRange range{mapping->begin, mapping->end};
    if (is_own(range)) return;
    if (range.bytes() < options_.min_bytes) {
      small_.push_back(range);
      return;
    }
    all_known = all_known && verdict_of(range).has_value();
    candidates.push_back(range);
  });
  if (!all_known) FARPAGE_TRY_VOID(read_flags(locked));
  unjudged_until_.reset();
  std::erase_if(candidates, [&](const AddressRange& range) {
    const std::optional<bool> fit = is_fit(range);
    if (!fit) unjudged_until_ = next_read_;
    return !fit.value_or(false);
  });
  return candidates;
}

}  // namespace farpage::inject
