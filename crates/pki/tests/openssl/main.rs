//! The crate as its users see it, cross-checked with the real `openssl` command. Without it these tests fail.

mod given;
mod jwt;
mod loading;
mod signing;
mod support;
