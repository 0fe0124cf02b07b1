// The records of store.h as JSON: the values of a store that keeps text under keys.
//
// Unknown fields are ignored, so that an older coordinator reads the records of a newer one.
// Failures are kInvalid and quote no key of a lease.
// Threads: any (no state).
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "coordinator/store.h"

namespace farpage::coordinator {

std::string encode(const NodeRecord& node);
std::string encode(const RegionRecord& region);
std::string encode(const LeaseKey& key, const Lease& lease);  // with rkeys
std::string encode(const Revocation& revocation);
std::string encode(const ImageRecord& image);

Result<NodeRecord> decode_node_record(std::string_view text);
Result<RegionRecord> decode_region_record(std::string_view text);
Result<std::pair<LeaseKey, Lease>> decode_lease_record(std::string_view text);
Result<Revocation> decode_revocation(std::string_view text);
Result<ImageRecord> decode_image_record(std::string_view text);

}  // namespace farpage::coordinator
