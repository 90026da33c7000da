#include "gpipe/model/autocast_scope.h"

#include "gpipe/model/autocast.h"

namespace gpipe {

AutocastScope::AutocastScope(at::DeviceType device, at::ScalarType type)
    : device_(device), was_enabled_(autocast::is_enabled(device)), type_before_(autocast::dtype(device)) {
  autocast::set_enabled(device_, true);
  autocast::set_dtype(device_, type);
}

AutocastScope::~AutocastScope() {
  autocast::set_enabled(device_, was_enabled_);
  autocast::set_dtype(device_, type_before_);
  at::autocast::clear_cache();
}

}  // namespace gpipe
