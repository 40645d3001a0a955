//! hwloc for crossmesh, as a library that is loaded at run time.
//!
//! In: a function that takes bytes. Out: this machine's topology with its I/O devices, as hwloc's XML. Guarantee: the
//! program that loads it needs no hwloc to start; no panic leaves this library; nothing is kept after a call.

use hwlocality::Topology;
use hwlocality::topology::builder::{BuildFlags, TypeFilter};
use hwlocality::topology::export::xml::XMLExportFlags;
use std::ffi::c_void;
use std::panic::catch_unwind;

/// Version of the two functions below; the loader refuses another.
const ABI_VERSION: u32 = 1;

/// Takes bytes that are valid during the call only.
type Take = unsafe extern "C" fn(context: *mut c_void, bytes: *const u8, length: usize);

/// The version of this library's functions.
#[unsafe(no_mangle)]
pub extern "C" fn crossmesh_topology_hwloc_abi() -> u32 {
    ABI_VERSION
}

/// Hands the topology of this machine to `take`, once, and returns 0; returns 1, and calls nothing, where hwloc fails.
///
/// # Safety
///
/// `take` may be called with `context` and bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crossmesh_topology_hwloc_xml(context: *mut c_void, take: Take) -> i32 {
    let Ok(Some(xml)) = catch_unwind(xml) else { return 1 };
    // SAFETY: the caller allows the call, and the text lives until it returns.
    unsafe { take(context, xml.as_ptr(), xml.len()) };
    0
}

fn xml() -> Option<String> {
    let builder = Topology::builder().with_flags(BuildFlags::INCLUDE_DISALLOWED).ok()?;
    let topology = builder.with_io_type_filter(TypeFilter::KeepImportant).ok()?.build().ok()?;
    let xml = topology.export_xml(XMLExportFlags::empty()).ok()?;
    Some(xml.to_string())
}
