//! Collectives on GPUs, against the host's results. In: names of cases. Out: outcomes.

pub(crate) mod apart;
pub(crate) mod here;
mod make;
mod norm;
pub(crate) mod soak;
mod trial;
