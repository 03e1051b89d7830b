// The sizes of a pooling layer over a batch.
#pragma once
#include <cstdint>

namespace rewire {

struct PoolShape {
    int32_t height, width, out_height, out_width, kernel_y, kernel_x, stride_y, stride_x, pad_y, pad_x;
    int64_t pixel_size;  // floats of one pixel: channels times batch
};

}  // namespace rewire
