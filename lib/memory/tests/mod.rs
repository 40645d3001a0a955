//! Tests of memory across threads and processes.

mod buffers;
mod processes;
mod segments;
