// Replays recorded calls of the native kernels (recording.py) with a library of any instruction set:
//
//   replay LIBRARY CALLS RESULTS
//
// CALLS and RESULTS are native 64-bit integers and raw memory. The library's description of its interface is printed.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

// One memory block that a call reads or writes, and where it holds the addresses of other blocks.
struct Block {
    int64_t size;
    char *data;
    std::vector<int64_t> pointers;  // offset, block, offset, block, ...
};

FILE *calls, *results;

void fail(const std::string &why) {
    std::fprintf(stderr, "%s\n", why.c_str());
    std::exit(1);
}

void read(void *into, int64_t size) {
    if (size && std::fread(into, size_t(size), 1, calls) != 1) fail("the file of calls ends too early");
}

int64_t number() {
    int64_t value;
    read(&value, sizeof value);
    return value;
}

Block read_block() {
    Block block{number(), nullptr, {}};
    block.data = static_cast<char *>(std::aligned_alloc(64, size_t(block.size / 64 + 1) * 64));
    read(block.data, block.size);
    block.pointers.resize(size_t(2 * number()));
    read(block.pointers.data(), int64_t(block.pointers.size() * sizeof(int64_t)));
    return block;
}

// Integers and addresses fill their registers and the stack in order, and the one float that some functions take has a
// register of its own, on x86-64 as on AArch64: this type fits every entry point.
typedef int64_t Word;
typedef void (*Function)(float, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word);

void replay(void *library) {
    std::string name(size_t(number()), ' ');
    read(&name[0], int64_t(name.size()));
    std::vector<Block> blocks(static_cast<size_t>(number()));
    for (Block &block : blocks) block = read_block();
    for (Block &block : blocks)
        for (size_t i = 0; i < block.pointers.size(); i += 2)
            *reinterpret_cast<char **>(block.data + block.pointers[i]) = blocks[size_t(block.pointers[i + 1])].data;
    float limit;
    read(&limit, sizeof limit);
    Word words[16] = {};
    const int64_t count = number();
    if (count > 16) fail(name + " takes more than 16 arguments");
    for (int64_t i = 0; i < count; i++) {
        const bool is_block = number();
        const int64_t value = number();
        words[i] = is_block ? reinterpret_cast<Word>(blocks[size_t(value)].data) : value;
    }
    Function function = reinterpret_cast<Function>(dlsym(library, name.c_str()));
    if (!function) fail("no function " + name);
    const Word *w = words;
    function(limit, w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11], w[12], w[13], w[14], w[15]);
    for (Block &block : blocks) {
        std::fwrite(block.data, size_t(block.size), 1, results);
        std::free(block.data);
    }
}

}  // namespace

int main(int count, char **words) {
    if (count != 4) fail("usage: replay LIBRARY CALLS RESULTS");
    void *library = dlopen(words[1], RTLD_NOW);
    if (!library) fail(dlerror());
    calls = std::fopen(words[2], "rb");
    results = std::fopen(words[3], "wb");
    if (!calls || !results) fail("the files cannot be opened");
    std::fputs(reinterpret_cast<const char *(*)()>(dlsym(library, "rewire_interface"))(), stdout);
    for (int64_t left = number(); left > 0; left--) replay(library);
    return std::fclose(results);
}
