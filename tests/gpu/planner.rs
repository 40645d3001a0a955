//! What the traps are built and judged with, from the planner's tests. In: layouts. Out: who has which element.

#[path = "../planner/layouts.rs"]
mod layouts;
#[path = "../planner/oracle.rs"]
#[allow(dead_code)]
pub(crate) mod oracle;

pub(crate) use layouts::layout;
