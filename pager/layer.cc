#include "pager/layer.h"

namespace farpage::pager {

Result<std::shared_ptr<Layer>> Layer::create(std::shared_ptr<Family> family,
                                             const PagerOptions& options, uint64_t pages,
                                             coordinator::Client& client, LayerOwner& owner) {
  FARPAGE_TRY(leases, LeaseMap::create(pages, options.slab_bytes));
  FARPAGE_TRY(id, family->add_layer(*leases));
  std::shared_ptr<Layer> layer(new Layer(std::move(family), id, std::move(leases)));
  FARPAGE_TRY(borrower,
              Borrower::create(options, *layer->leases_, layer->family_->nodes(), client, owner));
  layer->borrower_ = std::move(borrower);
  return layer;
}

Layer::~Layer() {
  borrower_.reset();
  family_->remove_layer(id_);
}

}  // namespace farpage::pager
