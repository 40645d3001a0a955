//! Which NUMA node memory comes from. In: a node. Out: the policy of this thread, which programs that it becomes and
//! threads that it starts inherit. Guarantee: memory is still found when that node has none left.

use std::io;

/// `MPOL_PREFERRED`: another node stands in when this one is full.
const PREFERRED: libc::c_long = 1;

/// Takes memory from NUMA node `node` first.
pub fn prefer_node(node: u32) -> io::Result<()> {
    let bits = libc::c_ulong::BITS;
    let mut mask = vec![0 as libc::c_ulong; (node / bits) as usize + 1];
    mask[(node / bits) as usize] = 1 << (node % bits);
    // The kernel counts bits from 1.
    let length = mask.len() as libc::c_ulong * libc::c_ulong::from(bits) + 1;
    // SAFETY: the mask has `length` - 1 bits, and the kernel only reads it.
    let code = unsafe { libc::syscall(libc::SYS_set_mempolicy, PREFERRED, mask.as_ptr(), length) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_there_is_preferred_and_another_refused() {
        // The policy is of this thread, which ends with the test.
        let here = std::thread::spawn(|| prefer_node(0)).join().unwrap();
        // Containers may forbid the call altogether; then it says so.
        assert!(here.is_ok() || here.unwrap_err().raw_os_error() == Some(libc::EPERM));
        assert!(std::thread::spawn(|| prefer_node(1 << 15)).join().unwrap().is_err());
    }
}
