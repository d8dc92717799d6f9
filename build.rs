//! Generates and compiles the bridge to the C++ adapter. Nothing to find and nothing to download: device
//! libraries are loaded at run time.
//!
//! The generated header is `cxxbridge/weightstream/src/ffi/bridge.rs.h` in cargo's target directory;
//! `cmake/rust.cmake` looks for it there.

fn main() {
    cxx_build::bridge("src/ffi/bridge.rs")
        .include("cpp/include")
        .std("c++17")
        .flag_if_supported("-fvisibility=hidden")
        .compile("weightstream_bridge");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/ffi/bridge.rs");
    println!("cargo::rerun-if-changed=cpp/include/weightstream/detail/bridge_types.h");
}
