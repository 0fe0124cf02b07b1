#include "pager/links/page_mender.h"

#include "base/log.h"

namespace farpage::pager {

std::string_view to_string(PageMender::End end) {
  switch (end) {
    case PageMender::End::kRight:
      return "right";
    case PageMender::End::kMended:
      return "mended";
    case PageMender::End::kLost:
      return "replica lost";
    case PageMender::End::kNoOther:
      return "no other replica has it";
    case PageMender::End::kUnknown:
      return "a replica cannot be read";
  }
  return "unknown";
}

PageMender::End PageMender::mend(const WrongPage& wrong) {
  const uint64_t closed_at = gate_.close(*wrong.leases, wrong.page, 1);
  const End end = gate_.await_quiet(closed_at, [this] { return transfer_.is_stopping(); })
                      ? mend_in_gate(wrong)
                      : End::kUnknown;
  gate_.open();
  if (end == End::kMended) mended_.fetch_add(1, std::memory_order_relaxed);
  if (end != End::kRight)
    log::warn("pager: page_mending page={} slab={} node={} end=\"{}\"", wrong.page.value,
              wrong.leases->slab_of(wrong.page).value, nodes_.name_of(wrong.replica->node),
              to_string(end));
  return end;
}

PageMender::End PageMender::mend_in_gate(const WrongPage& wrong) {
  const SlotChecksums& checksums = wrong.leases->checksums();
  const uint64_t checksum = checksums.known(wrong.page);
  if (checksum == 0 || !wrong.replica->is_read()) return End::kRight;
  const auto found = transfer_.buffer().first(kPageBytes);
  if (!transfer_.read(*wrong.leases, *wrong.replica, wrong.page, found)) return End::kUnknown;
  if (checksums.of(found) == checksum) return End::kRight;
  const auto right = transfer_.buffer().subspan(kPageBytes, kPageBytes);
  End end = End::kNoOther;
  for (const ReplicaLease* other : wrong.leases->find(wrong.page)->all()) {
    if (other == wrong.replica || !other->is_read()) continue;
    if (!transfer_.read(*wrong.leases, *other, wrong.page, right)) {
      end = End::kUnknown;
    } else if (checksums.of(right) == checksum) {
      return write_again(wrong, checksum, *other);
    }
  }
  return end;
}

// A WRITE without an answer may take effect later, when the page has been written back again. Then
// the replica is lost, as one that has missed a write.
PageMender::End PageMender::write_again(const WrongPage& wrong, uint64_t checksum,
                                        const ReplicaLease& source) {
  const LeaseMap& leases = *wrong.leases;
  const auto right = transfer_.buffer().subspan(kPageBytes, kPageBytes);
  const auto written =
      transfer_.run(rdma::OperationKind::kWrite, leases, *wrong.replica, wrong.page, right);
  if (!written) return End::kUnknown;
  const auto back = transfer_.buffer().first(kPageBytes);
  if (*written == rdma::CompletionStatus::kOk) {
    if (!transfer_.read(leases, *wrong.replica, wrong.page, back)) return End::kUnknown;
    if (leases.checksums().of(back) == checksum) return End::kMended;
  }
  (void)mark_lost(leases, nodes_, wrong.page, *wrong.replica,
                  "it had wrong bytes of a page, and does not keep the right ones", &source);
  return End::kLost;
}

}  // namespace farpage::pager
