//! MPI adapter.
