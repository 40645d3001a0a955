//! What peers may send here, for fuzzing. In: any bytes, the first of which chooses a decoder. Out: whether it took them.
//! Guarantee: the frames of the TCP link and the addresses of both links are reached.

use super::{shm, tcp};

/// Reads `bytes`.
pub fn read(bytes: &[u8]) -> bool {
    let Some((&decoder, bytes)) = bytes.split_first() else { return false };
    match decoder {
        0 => tcp::reads_frame(bytes),
        1 => tcp::reads_address(bytes),
        2 => shm::reads_address(bytes),
        _ => false,
    }
}

/// Bytes that are read, of every kind.
pub fn examples() -> Vec<Vec<u8>> {
    let frame = |kind: u8| {
        let mut header = vec![0; 33];
        (header[1], header[9], header[25]) = (kind, 7, 64);
        header
    };
    let addresses = [
        (1, r#"{"instance":77,"places":["10.0.0.1:4000","[fe80::1]:4000"]}"#),
        (2, r#"{"instance":[1,2,3,4,5,6,7,8,9,10,11],"server":"/run/crossmesh/1"}"#),
    ];
    let texts = addresses.map(|(decoder, text): (u8, &str)| [&[decoder][..], text.as_bytes()].concat());
    (1..5).map(frame).chain(texts).collect()
}
