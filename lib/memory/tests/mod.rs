//! Tests of memory across threads and processes.

mod buffers;
mod pages;
mod processes;
mod segments;
