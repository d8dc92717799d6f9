//! Generates and compiles the bridge to the C++ adapter. Nothing to find and nothing to download: device
//! libraries are loaded at run time.
//!
//! The generated headers are `cxxbridge/weightstream/src/ffi/*.rs.h` in cargo's target directory;
//! `cmake/rust.cmake` looks for them there.

const BRIDGES: [&str; 2] = ["src/ffi/types.rs", "src/ffi/bridge.rs"];
const HEADERS: [&str; 2] = [
    "cpp/include/weightstream/detail/bridge_types.h",
    "cpp/include/weightstream/weightstream.h",
];

fn main() {
    cxx_build::bridges(BRIDGES)
        .include("cpp/include")
        .std("c++17")
        .flag_if_supported("-fvisibility=hidden")
        .compile("weightstream_bridge");
    println!("cargo::rerun-if-changed=build.rs");
    for path in BRIDGES.iter().chain(&HEADERS) {
        println!("cargo::rerun-if-changed={path}");
    }
}
