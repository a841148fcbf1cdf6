//! The crate as its users see it, with the real `openssl` command as the second opinion. Without it these tests fail.

mod given;
mod jwt;
mod loading;
mod signing;
mod support;
