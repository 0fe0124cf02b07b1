// The messages of api.h as JSON: one decode and one encode function for each message.
//
// Decoding is strict, because the bytes come from a socket: wrong types, numbers out of range, bad
// names, missing fields, keys given twice and nesting deeper than kMaxJsonDepth are refused. The
// text of a transport's address is not interpreted. Requests also refuse unknown fields; replies
// ignore them, so that an older client understands a newer coordinator. Failures are kInvalid. A
// failure of one field reads "field 'transports[0].kind': what is wrong, and the remedy";
// http::field_of() extracts that path.
//
// Threads: any (no state).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "coordinator/api.h"

namespace farpage::coordinator {

inline constexpr size_t kMaxTransports = 16;
inline constexpr size_t kMaxCounters = 512;      // per heartbeat
inline constexpr size_t kMaxCounterBytes = 200;  // per counter name, with its labels
inline constexpr uint32_t kMaxSlabsPerNode = 1U << 20;
inline constexpr size_t kMaxSessionGroups = size_t{1} << 16;  // per heartbeat

enum class Secrets : bool { kHide, kShow };  // kHide: leases without their rkeys

// As NodeJoin::identity; not the empty one.
bool is_identity(std::string_view text);

// ---- requests ----
Result<NodeJoin> decode_node_join(std::string_view body);
Result<NodeHeartbeat> decode_node_heartbeat(std::string_view body);
Result<NodeLend> decode_node_lend(std::string_view body);
Result<Rebalance> decode_rebalance(std::string_view body);
Result<RegionCreate> decode_region_create(std::string_view body);
Result<RegionHeartbeat> decode_region_heartbeat(std::string_view body);
Result<std::vector<SlabIndex>> decode_slab_list(std::string_view body);
Result<RepairBegin> decode_repair_begin(std::string_view body);
Result<RepairComplete> decode_repair_complete(std::string_view body);
Result<ImageCreate> decode_image_create(std::string_view body);
Result<ImageProgress> decode_image_progress(std::string_view body);
Result<ImageReader> decode_image_reader(std::string_view body);
Result<rdma::QueuePairEndpoint> decode_queue_pair_endpoint(std::string_view body);
Result<std::vector<NodeSlabRequest>> decode_slab_lease_requests(std::string_view body);
Result<SlabRevokeRequest> decode_slab_revoke_request(std::string_view body);
Result<std::vector<uint32_t>> decode_node_slabs(std::string_view body);  // at least one

std::string encode(const NodeJoin& node);
std::string encode(const NodeHeartbeat& heartbeat);
std::string encode(const NodeLend& lend);
std::string encode(const Rebalance& rebalance);
std::string encode(const RegionCreate& region);
std::string encode(const RegionHeartbeat& heartbeat);
std::string encode(const std::vector<SlabIndex>& slabs);
std::string encode(const RepairBegin& repair);
std::string encode(const RepairComplete& repair);
std::string encode(const ImageCreate& image);
std::string encode(const ImageProgress& progress);
std::string encode(const ImageReader& reader);
std::string encode(const rdma::QueuePairEndpoint& endpoint);
std::string encode(std::span<const NodeSlabRequest> requests);
std::string encode(const SlabRevokeRequest& request);
std::string encode_node_slabs(std::span<const uint32_t> node_slabs);

// ---- the keys of one lease, in a store ----
Result<RemoteKeys> decode_remote_keys(std::string_view body);
std::string encode(const RemoteKeys& keys);

// ---- replies ----
Result<NodeInfo> decode_node_info(std::string_view body);
Result<std::vector<NodeInfo>> decode_node_list(std::string_view body);
Result<Rebalanced> decode_rebalanced(std::string_view body);
Result<RegionInfo> decode_region_info(std::string_view body);
Result<std::vector<RegionInfo>> decode_region_list(std::string_view body);
Result<std::vector<Lease>> decode_lease_list(std::string_view body);
Result<RepairBegun> decode_repair_begun(std::string_view body);
Result<RegionHeard> decode_region_heard(std::string_view body);
Result<ImageInfo> decode_image_info(std::string_view body);
Result<std::vector<ImageInfo>> decode_image_list(std::string_view body);
Result<OpenedImage> decode_opened_image(std::string_view body);
Result<ReaderHeard> decode_reader_heard(std::string_view body);
Result<EventBatch> decode_event_batch(std::string_view body);
Result<rdma::QueuePairEndpoint> decode_queue_pair_reply(std::string_view body);
// One for each request; kInvalid too when it is another number of them.
Result<std::vector<Result<SlabLeaseReply>>> decode_slab_lease_replies(std::string_view body,
                                                                      size_t requests);
Result<uint64_t> decode_incarnation(std::string_view body);  // of a node's GET /v1/status

std::string encode(const NodeInfo& node);
std::string encode(const std::vector<NodeInfo>& nodes);
std::string encode(const Rebalanced& done);
std::string encode(const RegionInfo& region, Secrets secrets);
std::string encode(const std::vector<RegionInfo>& regions);  // always without rkeys
std::string encode(const std::vector<Lease>& leases);        // with rkeys
std::string encode(const RepairBegun& begun);                // with rkeys
std::string encode(const RegionHeard& heard);
std::string encode(const ImageInfo& image);
std::string encode(const std::vector<ImageInfo>& images);
std::string encode(const OpenedImage& opened);  // with rkeys
std::string encode(const ReaderHeard& heard);
std::string encode(const EventBatch& batch);
std::string encode(const std::vector<Result<SlabLeaseReply>>& replies);

// GET /v1/nodes/{id}/rdma/endpoint
std::string encode(const NodeEndpoints& endpoints);

}  // namespace farpage::coordinator
