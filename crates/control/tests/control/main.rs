//! The controller as its users see it, without machines. `conformance` has what every provider must do.

mod formats;
mod ledger;
mod secrets;
