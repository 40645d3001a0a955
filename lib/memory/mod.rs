//! Memory that tensors live in.
//!
//! In: sizes, user pointers, peers' exports. Out: shared segments (memfd), private buffers, and views of a
//! peer's memory. Guarantee: nothing is left in `/dev/shm`; descriptors pass only between processes of one user.
