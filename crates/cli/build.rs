//! A program's relocation table stays in memory for the lifetime of the agent. Packed, it takes a hundredth of the space.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A static program relocates itself: musl's startup code reads the packed list too, from the version that Rust brings on.
    if std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|libc| libc == "gnu" || libc == "musl") {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}
