#include <string>

#include "pager/pages/page_age.h"
#include "pager/pages/page_table.h"

namespace farpage::pager {

Status check_invariants(const PageTable& table) {
  uint64_t away = 0;
  uint64_t shared = 0;
  for (uint64_t block = 0; block < table.blocks(); ++block) {
    uint32_t resident = 0;
    for (uint64_t i = block * kPagesPerBlock; i < (block + 1) * kPagesPerBlock; ++i) {
      if (i >= table.pages()) break;
      const PageWord word = table.load(PageIndex{i});
      if (word.references() > kReferencesOfReturn)
        return fail(ErrorCode::kConflict, "page " + std::to_string(i) + " has " +
                                              std::to_string(word.references()) + " references");
      if (is_resident(word.state())) ++resident;
      if (is_away(word)) ++away;
      if (is_shared(word)) ++shared;
    }
    if (resident != table.resident_in_block(block))
      return fail(ErrorCode::kConflict, "block " + std::to_string(block) + " counts " +
                                            std::to_string(table.resident_in_block(block)) +
                                            " resident pages, has " + std::to_string(resident));
  }
  for (uint64_t i = table.used_pages(); i < table.pages(); ++i)
    if (table.load(PageIndex{i}).state() != PageState::kEmpty)
      return fail(ErrorCode::kConflict,
                  "page " + std::to_string(i) + " is used, beyond the highest used one");
  if (away != table.away_pages())
    return fail(ErrorCode::kConflict, "the table counts " + std::to_string(table.away_pages()) +
                                          " pages away, has " + std::to_string(away));
  if (shared != table.shared_pages())
    return fail(ErrorCode::kConflict, "the table counts " + std::to_string(table.shared_pages()) +
                                          " shared pages, has " + std::to_string(shared));
  return {};
}

}  // namespace farpage::pager
