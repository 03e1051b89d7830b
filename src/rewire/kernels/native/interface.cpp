// What `rewire/kernels/library.py` asks a library before it uses it: which CPU extensions there are, which sources it was built
// from, and how its entry points and structures look.
#include <cstddef>
#include <cstring>
#include <string>

#include "chain.hpp"
#include "conv_csr.hpp"
#include "csr_build.hpp"
#include "entry_point.hpp"
#include "linear_csr.hpp"
#include "pooling.hpp"
#include "sample_program.hpp"

#ifndef REWIRE_SOURCE_HASH
#error "compile with `python -m rewire.kernels.build`, which defines REWIRE_SOURCE_HASH"
#endif

namespace rewire {

const EntryPoint *EntryPoint::first = nullptr;

namespace {

// One line: "struct name size field:offset:size ...".
class StructLine {
  public:
    StructLine(const char *name, size_t size) : text_("struct " + std::string(name) + " " + std::to_string(size)) {}
    StructLine &field(const char *name, size_t offset, size_t size) {
        text_ += " " + std::string(name) + ":" + std::to_string(offset) + ":" + std::to_string(size);
        return *this;
    }
    std::string line() const { return text_ + "\n"; }

  private:
    std::string text_;
};

#define DESCRIBE(type, fields) { typedef type Struct; text += StructLine(#type, sizeof(type)) fields.line(); }
#define FIELD(name) .field(#name, offsetof(Struct, name), sizeof(Struct::name))

// Every structure that crosses the C interface, with all of its fields; rewire/kernels/structures.py has the same ones.
std::string structures() {
    std::string text;
    DESCRIBE(LayerShape, FIELD(out_channels) FIELD(in_channels) FIELD(taps) FIELD(groups))
    DESCRIBE(ForwardCsr, FIELD(col_blocks) FIELD(row_ptr) FIELD(tap_offset))
    DESCRIBE(CsrArrays,
             FIELD(forward_blocks) FIELD(backward_blocks) FIELD(backward_tap_rank) FIELD(backward_tap_offset)
             FIELD(forward_row_ptr) FIELD(backward_row_ptr) FIELD(backward_col_idx) FIELD(backward_perm))
    DESCRIBE(Axis, FIELD(size) FIELD(base) FIELD(phase) FIELD(tap_begin) FIELD(tap_end))
    DESCRIBE(ConvCsr,
             FIELD(out_channels) FIELD(taps) FIELD(col_blocks) FIELD(in_channels) FIELD(in_height)
             FIELD(in_width) FIELD(nnz) FIELD(y) FIELD(x) FIELD(x_phases) FIELD(phase_first_tap)
             FIELD(phase_width) FIELD(tap_dy) FIELD(tap_dx) FIELD(row_stride) FIELD(block_stride)
             FIELD(row_ptr) FIELD(col_idx) FIELD(row_base) FIELD(perm) FIELD(prefetch_dy) FIELD(prefetch_dx)
             FIELD(prefetch_rows))
    DESCRIBE(ConvPasses,
             FIELD(shape) FIELD(forward_csr) FIELD(forward) FIELD(backward) FIELD(backward_tap_rank)
             FIELD(backward_tap_offset) FIELD(dense_forward) FIELD(dense_backward))
    DESCRIBE(ChainStage,
             FIELD(conv) FIELD(source) FIELD(addend) FIELD(pool) FIELD(is_int64) FIELD(eps) FIELD(relu_limit)
             FIELD(positions) FIELD(values) FIELD(conv_bias) FIELD(weight) FIELD(bias) FIELD(mean) FIELD(variance)
             FIELD(before_norm) FIELD(output))
    DESCRIBE(StageGradients,
             FIELD(output) FIELD(before_relu) FIELD(addend_part) FIELD(addend) FIELD(before_norm)
             FIELD(source_part) FIELD(source) FIELD(values) FIELD(weight) FIELD(bias))
    DESCRIBE(CsrRows, FIELD(rows) FIELD(is_int64) FIELD(row_ptr) FIELD(col_idx) FIELD(row_stride) FIELD(perm))
    DESCRIBE(LinearCsr, FIELD(outputs) FIELD(inputs) FIELD(nnz))
    DESCRIBE(PoolShape,
             FIELD(height) FIELD(width) FIELD(out_height) FIELD(out_width) FIELD(kernel_y) FIELD(kernel_x)
             FIELD(stride_y) FIELD(stride_x) FIELD(pad_y) FIELD(pad_x) FIELD(pixel_size))
    DESCRIBE(Activation,
             FIELD(offset) FIELD(channel_stride) FIELD(channels) FIELD(height) FIELD(width) FIELD(row_stride)
             FIELD(origin))
    DESCRIBE(StepWindow,
             FIELD(height) FIELD(width) FIELD(stride_y) FIELD(stride_x) FIELD(pad_y) FIELD(pad_x)
             FIELD(count_padding) FIELD(phases))
    DESCRIBE(Step,
             FIELD(kind) FIELD(relu) FIELD(limit) FIELD(outputs_per_group) FIELD(source) FIELD(addend)
             FIELD(target) FIELD(window) FIELD(row_ptr) FIELD(col_idx) FIELD(values) FIELD(bias)
             FIELD(row_size) FIELD(columns) FIELD(group_stride))
    return text;
}

std::string functions() {
    std::string text;
    for (const EntryPoint *entry = EntryPoint::first; entry; entry = entry->next)
        text += "function " + std::string(entry->name) + " " + entry->signature + "\n";
    return text;
}

}  // namespace
}  // namespace rewire

using namespace rewire;

// Returns 1 if the CPU and the operating system support the given extension, 0 if they do not, -1 if the name is unknown. Asked
// of the baseline library, which every CPU can run.
EXPORT int rewire_cpu_supports(const char *extension) {
#if defined(__x86_64__) || defined(__i386__)
#define ANSWER(name) \
    if (!std::strcmp(extension, name)) return __builtin_cpu_supports(name) != 0
    ANSWER("avx2");
    ANSWER("fma");
    ANSWER("avx512f");
    ANSWER("avx512dq");
    ANSWER("avx512vl");
    ANSWER("avx512bw");
#endif
    return -1;
}
REGISTER(rewire_cpu_supports);

// The hash of the sources and flags that the library was built from (rewire/kernels/build.py).
EXPORT const char *rewire_source_hash() { return REWIRE_SOURCE_HASH; }
REGISTER(rewire_source_hash);

// One line for every entry point and structure.
EXPORT const char *rewire_interface() {
    static const std::string text = functions() + structures();
    return text.c_str();
}
REGISTER(rewire_interface);
