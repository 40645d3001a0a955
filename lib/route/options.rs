//! Choices of a route. In: text or environment. Out: [`RouteOptions`]. Guarantee: equal on all ranks, since they
//! are part of the digest that ranks compare.

use crate::base::env::{self, EnvError};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Route of a reshard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum RouteKind {
    /// Every byte once into each domain, rings between domains, local fan-out (NCCL M2N, section V-B).
    #[default]
    Hierarchical,
    /// The lowest holder sends to every wanter.
    Flat,
    /// Gather to one source root, the payload once into each destination domain, all of it to every rank there.
    GatherBroadcast,
}

/// Which replicas of a cell inject it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Injection {
    /// All of them, disjoint slices.
    #[default]
    Striped,
    /// The lowest one, as in NCCL M2N.
    Single,
}

/// What a route is made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
pub struct RouteOptions {
    /// Route.
    pub kind: RouteKind,
    /// Injection of the hierarchical route.
    pub injection: Injection,
}

impl RouteOptions {
    /// Every route that differs from the others, in order of preference: injection counts for the hierarchical one.
    pub const ALL: [Self; 4] = [
        Self { kind: RouteKind::Hierarchical, injection: Injection::Striped },
        Self { kind: RouteKind::Hierarchical, injection: Injection::Single },
        Self { kind: RouteKind::Flat, injection: Injection::Single },
        Self { kind: RouteKind::GatherBroadcast, injection: Injection::Single },
    ];

    /// The same with `CROSSMESH_ROUTE` and `CROSSMESH_INJECTION` in force where set.
    pub fn with_environment(self) -> Result<Self, EnvError> {
        Ok(Self {
            kind: env::value(env::ROUTE)?.unwrap_or(self.kind),
            injection: env::value(env::INJECTION)?.unwrap_or(self.injection),
        })
    }
}

macro_rules! names {
    ($type:ident, $what:literal, $($variant:ident = $name:literal),*) => {
        impl fmt::Display for $type {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.pad(match self { $(Self::$variant => $name),* })
            }
        }
        impl FromStr for $type {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($name => Ok(Self::$variant),)*
                    _ => Err(format!(concat!("unknown ", $what, " {:?}; allowed: {}"), text, [$($name),*].join(", "))),
                }
            }
        }
    };
}

names!(RouteKind, "route", Hierarchical = "hierarchical", Flat = "flat", GatherBroadcast = "gather-broadcast");
names!(Injection, "injection", Striped = "striped", Single = "single");
