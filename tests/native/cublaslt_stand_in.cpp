// cuBLASLt without a GPU: the entry points that memcfg calls, declared anew after
// cublasLt.h, over the stand-in for the driver. A product is a kernel on the caller's
// stream. Who breaks a rule gets CUBLAS_STATUS_INVALID_VALUE, and a line says which.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <set>

namespace {

enum { kSuccess = 0, kInvalid = 7, kFailed = 13, kNotSupported = 15 };

struct Description {
  int compute, scale;
  int transposed[2] = {0, 0};
  std::uint32_t epilogue = 1;
  const void* bias = nullptr;
};
struct Layout {
  int type;
  std::uint64_t rows, columns;
  std::int64_t leading;
  int batch = 1;
  std::int64_t stride = 0;
};
struct Preference {
  std::uint64_t workspace = 0;
  std::uint32_t reductions = 7;
  std::uint32_t alignment[4] = {256, 256, 256, 256};
};
struct Algorithm {
  std::uint64_t data[8];  // mark, rows, columns, depth, batch, workspace
};
struct Result {
  Algorithm algorithm;
  std::size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(Result) == 96);

constexpr std::uint64_t kMark = 0x6d656d636667;
constexpr std::uint64_t kDeep = 64;  // products from here on need workspace

struct Driver {
  int (*load)(void**, const void*);
  int (*unload)(void*);
  int (*function)(void**, void*, const char*);
  int (*launch)(void*,
                unsigned,
                unsigned,
                unsigned,
                unsigned,
                unsigned,
                unsigned,
                unsigned,
                void*,
                void**,
                void**);
} driver;
const char* image = nullptr;
std::set<void*> alive;
long products = 0, searches = 0;
bool failing = false;

struct Handle {
  void* module = nullptr;
  void* kernel = nullptr;
};

int invalid(const char* what) {
  std::fprintf(stderr, "cuBLASLt's stand-in: %s\n", what);
  return kInvalid;
}
template <class T>
int make(T** made, T value) {
  *made = new T(value);
  alive.insert(*made);
  return kSuccess;
}
template <class T>
int destroy(T* made) {
  if (alive.erase(made) != 1) return invalid("destroyed twice");
  delete made;
  return kSuccess;
}
template <class T>
int take(T& field, const void* value, std::size_t size) {
  if (size != sizeof field) return invalid("an attribute of another size");
  std::memcpy(&field, value, size);
  return kSuccess;
}
bool known(std::initializer_list<const void*> things) {
  for (const void* each : things) {
    if (alive.count(const_cast<void*>(each)) == 0) return false;
  }
  return true;
}
bool aligned(const void* address, std::uintptr_t to) {
  return reinterpret_cast<std::uintptr_t>(address) % to == 0;
}

// The sizes of a product of layouts that fit one another; false if they do not.
bool measure(const Description& description,
             const Layout& a,
             const Layout& b,
             const Layout& c,
             Algorithm& found) {
  const auto turned = [](const Layout& x, int transposed, bool row) {
    return row != (transposed == 1) ? x.rows : x.columns;
  };
  const auto* const t = description.transposed;
  const std::uint64_t rows = turned(a, t[0], true), depth = turned(a, t[0], false);
  const std::uint64_t columns = turned(b, t[1], false);
  if (turned(b, t[1], true) != depth || c.rows != rows || c.columns != columns) {
    return false;
  }
  for (const Layout* each : {&a, &b, &c}) {
    if (each->batch != c.batch || each->type != 0 ||
        each->leading < static_cast<std::int64_t>(each->rows)) {
      return false;
    }
  }
  const std::uint64_t batch = static_cast<std::uint64_t>(c.batch);
  const std::uint64_t workspace = depth < kDeep ? 0 : 4 * rows * columns * batch;
  found = {{kMark, rows, columns, depth, batch, workspace}};
  return true;
}

}  // namespace

extern "C" {

void memcfg_cublaslt(const char* driver_path, const char* kernels) {
  void* const library = dlopen(driver_path, RTLD_NOW | RTLD_LOCAL);
  const auto find = [library](auto& function, const char* name) {
    *reinterpret_cast<void**>(&function) = dlsym(library, name);
  };
  find(driver.load, "cuModuleLoadData");
  find(driver.unload, "cuModuleUnload");
  find(driver.function, "cuModuleGetFunction");
  find(driver.launch, "cuLaunchKernel");
  image = strdup(kernels);
}
long memcfg_cublaslt_alive() {
  return static_cast<long>(alive.size());
}
long memcfg_cublaslt_products() {
  return products;
}
long memcfg_cublaslt_searches() {
  return searches;
}
void memcfg_cublaslt_fail(bool on) {
  failing = on;
}

std::size_t cublasLtGetVersion() {
  return 130102;
}
const char* cublasLtGetStatusName(int status) {
  return status == kInvalid ? "CUBLAS_STATUS_INVALID_VALUE"
                            : "CUBLAS_STATUS_EXECUTION_FAILED";
}
int cublasLtCreate(Handle** handle) {
  Handle made;
  if (driver.load(&made.module, image) != 0) return invalid("no context");
  if (driver.function(&made.kernel, made.module, "product") != 0) return kFailed;
  return make(handle, made);
}
int cublasLtDestroy(Handle* handle) {
  if (driver.unload(handle->module) != 0) return kFailed;
  return destroy(handle);
}
int cublasLtMatmulDescCreate(Description** made, int compute, int scale) {
  if (scale != 0 || (compute != 68 && compute != 77)) return invalid("compute type");
  return make(made, Description{compute, scale});
}
int cublasLtMatmulDescDestroy(Description* made) {
  return destroy(made);
}
int cublasLtMatmulDescSetAttribute(Description* made,
                                   int which,
                                   const void* value,
                                   std::size_t size) {
  if (!known({made})) return invalid("description");
  if (which == 3 || which == 4) return take(made->transposed[which - 3], value, size);
  if (which == 7) return take(made->epilogue, value, size);
  if (which == 8) return take(made->bias, value, size);
  return invalid("attribute of a description");
}
int cublasLtMatrixLayoutCreate(Layout** made,
                               int type,
                               std::uint64_t rows,
                               std::uint64_t columns,
                               std::int64_t leading) {
  return make(made, Layout{type, rows, columns, leading});
}
int cublasLtMatrixLayoutDestroy(Layout* made) {
  return destroy(made);
}
int cublasLtMatrixLayoutSetAttribute(Layout* made,
                                     int which,
                                     const void* value,
                                     std::size_t size) {
  if (!known({made})) return invalid("layout");
  if (which == 5) return take(made->batch, value, size);
  if (which == 6) return take(made->stride, value, size);
  return invalid("attribute of a layout");
}
int cublasLtMatmulPreferenceCreate(Preference** made) {
  return make(made, Preference{});
}
int cublasLtMatmulPreferenceDestroy(Preference* made) {
  return destroy(made);
}
int cublasLtMatmulPreferenceSetAttribute(Preference* made,
                                         int which,
                                         const void* value,
                                         std::size_t size) {
  if (!known({made})) return invalid("preference");
  if (which == 1) return take(made->workspace, value, size);
  if (which == 3) return take(made->reductions, value, size);
  if (which >= 5 && which <= 8) return take(made->alignment[which - 5], value, size);
  return invalid("attribute of a preference");
}
int cublasLtMatmulAlgoGetHeuristic(Handle* handle,
                                   Description* description,
                                   Layout* a,
                                   Layout* b,
                                   Layout* c,
                                   Layout* d,
                                   Preference* preference,
                                   int wanted,
                                   Result* results,
                                   int* count) {
  ++searches;
  if (!known({handle, description, a, b, c, d, preference}) || wanted < 1) {
    return invalid("search");
  }
  if ((preference->reductions & ~2U) != 0) return invalid("reductions in any order");
  for (const std::uint32_t each : preference->alignment) {
    if (each > 64) return invalid("more alignment than operands have");
  }
  Result& found = results[0];
  std::memset(&found, 0, sizeof found);
  *count = 0;
  if (!measure(*description, *a, *b, *d, found.algorithm)) return invalid("sizes");
  if (c->rows != d->rows || c->columns != d->columns) return invalid("sizes of c");
  found.workspace = found.algorithm.data[5];
  const bool biased = description->epilogue == 4;
  if (!biased && description->epilogue != 1) return invalid("epilogue");
  if (biased != (description->bias != nullptr)) return invalid("bias");
  if (d->rows == 13 || (biased && d->rows == 11)) return kNotSupported;
  if (found.workspace > preference->workspace) {
    const bool another = preference->workspace == 0 && found.algorithm.data[3] < 128;
    if (!another) return kSuccess;  // none is found
    found.workspace = found.algorithm.data[5] = 0;
  }
  *count = 1;
  return kSuccess;
}
int cublasLtMatmul(Handle* handle,
                   Description* description,
                   const float* alpha,
                   const void* a,
                   Layout* a_layout,
                   const void* b,
                   Layout* b_layout,
                   const float* beta,
                   const void* c,
                   Layout* c_layout,
                   void* d,
                   Layout* d_layout,
                   const Algorithm* algorithm,
                   void* workspace,
                   std::size_t workspace_bytes,
                   void* stream) {
  if (failing) return kFailed;
  if (!known({handle, description, a_layout, b_layout, c_layout, d_layout})) {
    return invalid("product");
  }
  Algorithm fits;
  if (!measure(*description, *a_layout, *b_layout, *d_layout, fits)) {
    return invalid("sizes");
  }
  if (algorithm->data[5] == 0) fits.data[5] = 0;
  if (std::memcmp(&fits, algorithm, sizeof fits) != 0) {
    return invalid("an algorithm of another product");
  }
  if (*alpha != 1 || *beta != 0 || c != d) return invalid("factors");
  for (const void* each : {a, b, c}) {
    if (each == nullptr || !aligned(each, 16)) return invalid("operands");
  }
  if (workspace_bytes < fits.data[5] || !aligned(workspace, 256) ||
      (workspace == nullptr) != (workspace_bytes == 0)) {
    return invalid("workspace");
  }
  if ((description->epilogue == 4) != (description->bias != nullptr) ||
      !aligned(description->bias, 16)) {
    return invalid("bias");
  }
  int tf32 = description->compute == 77;
  int* const turned = description->transposed;
  std::uint64_t* const sizes = fits.data;
  void* arguments[] = {
      &a,
      &b,
      &d,
      &workspace,
      &workspace_bytes,
      &sizes[1],
      &sizes[2],
      &sizes[3],
      &sizes[4],
      &a_layout->leading,
      &b_layout->leading,
      &d_layout->leading,
      &a_layout->stride,
      &b_layout->stride,
      &d_layout->stride,
      &turned[0],
      &turned[1],
      &tf32,
      &description->bias,
  };
  ++products;
  const int status =
      driver.launch(handle->kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr);
  return status == 0 ? kSuccess : kFailed;
}
}
