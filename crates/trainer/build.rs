//! Tells the program which compiler it was built with, for `environment.json`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = std::process::Command::new(compiler).arg("--version").output();
    let text = version.ok().and_then(|output| String::from_utf8(output.stdout).ok()).unwrap_or_default();
    println!("cargo::rustc-env=MANYHEADS_RUSTC={}", text.trim());
}
