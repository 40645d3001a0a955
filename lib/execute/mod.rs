//! execute
