//! Ids. In: small integers. Out: newtypes that cannot be mixed up. Guarantee: `Copy`, ordered, hashable.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// The id as an index into a table.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(formatter)
            }
        }
    };
}

id!(
    /// A process of the job, counted from 0 within its communicator.
    Rank
);
id!(
    /// An NVLink domain: ranks that reach each other's memory directly.
    DomainId
);
id!(
    /// A host.
    NodeId
);
