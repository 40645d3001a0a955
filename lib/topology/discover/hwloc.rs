//! What hwloc knows and sysfs does not say. In: facts so far. Out: the same, completed. Guarantee: hwloc adds and never
//! takes away; without it the facts stay as they are, and a source says so.

use crate::topology::facts::{HostFacts, Source};

/// Completes `facts` by what hwloc states of this machine.
pub(super) fn complete(facts: &mut HostFacts) {
    facts.sources.push(Source::missing("hwloc", "adapter not found"));
}
