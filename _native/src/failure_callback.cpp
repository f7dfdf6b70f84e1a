#include "memcfg/failure_callback.hpp"

#include <exception>
#include <stdexcept>
#include <utility>

#include "memcfg/error.hpp"
#include "memcfg/foreign.hpp"

namespace memcfg {

FailureCallbackResource::FailureCallbackResource(std::shared_ptr<Resource> upstream,
                                                 Callback callback)
    : upstream_(std::move(upstream)), callback_(std::move(callback)) {
  if (upstream_ == nullptr) throw std::invalid_argument("an adaptor needs a resource");
  if (!callback_) throw std::invalid_argument("there is no callback");
}

void* FailureCallbackResource::allocate(const Request& request) {
  for (;;) {
    std::exception_ptr failure;
    try {
      return upstream_->allocate(request);
    } catch (const out_of_memory&) {
      failure = std::current_exception();
    }  // the callback runs outside the handler: it may throw and catch as it likes
    if (!callback_(request.size)) std::rethrow_exception(failure);
  }
}

FailureCallbackResource::Callback foreign_callback(int (*function)(void*, Bytes),
                                                   void* context) {
  return [function, context](Bytes size) {
    const int answer = call_foreign(function, context, size);
    if (answer < 0) throw callback_raised();
    return answer > 0;
  };
}

}  // namespace memcfg
