//! The controller as its users see it, without machines. What every provider must do is in `conformance`.

mod formats;
mod ledger;
mod secrets;
