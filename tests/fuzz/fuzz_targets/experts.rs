//! libFuzzer's way into `crossmesh_fuzz::TARGETS`: bytes go in, a panic comes out; `experts` alone.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    crossmesh_fuzz::run("experts", bytes);
});
