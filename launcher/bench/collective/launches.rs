//! Blocks and threads to be tried. In: an algorithm, a size. Out: launches. Guarantee: pure; no launch has more than a few threads
//! too many for the data, or a few hundred times too few.

use crossmesh::collective::{Algorithm, Kind, Launch, most_blocks};

const BLOCKS: [u16; 10] = [1, 2, 4, 8, 16, 32, 64, 96, 128, 256];
/// The last is the most that a kernel of the family is compiled for.
const THREADS: [u16; 4] = [64, 128, 256, 512];

/// Launches worth a try for `bytes` bytes of a rank, where `most` blocks of 512 threads are resident: all of them are what a
/// table that names them gets.
pub(super) fn launches(kind: Kind, algorithm: Algorithm, bytes: u64, most: u16, registered: bool) -> Vec<Launch> {
    // Bytes that a thread takes at once.
    let unit = match algorithm {
        Algorithm::OneShotPush | Algorithm::TwoShotPush => 8,
        // A warp takes a bundle.
        Algorithm::LinePush => 30,
        _ => 16,
    };
    let units = bytes.div_ceil(unit).max(1);
    let mut found = Vec::new();
    for threads in THREADS {
        let most_blocks = most_blocks(kind, algorithm, bytes, (most.max(1), threads));
        for blocks in BLOCKS.into_iter().chain([most.max(1)]).filter(|&blocks| blocks <= most_blocks) {
            let all = u64::from(blocks) * u64::from(threads);
            let fits = all < 2 * units || (blocks == 1 && threads == THREADS[0]);
            let suffices = all * 16 >= units || u32::from(blocks) * 4 >= u32::from(most);
            let launch = Launch { algorithm, blocks, threads, registered };
            if fits && suffices && !found.contains(&launch) {
                found.push(launch);
            }
        }
    }
    found
}

/// Algorithms that may run calls of `kind` between kernels that wait for each other.
pub(super) fn algorithms(kind: Kind) -> Vec<Algorithm> {
    match kind {
        Kind::AllReduce => vec![
            Algorithm::OneShotPush,
            Algorithm::LinePush,
            Algorithm::OneShotPull,
            Algorithm::TwoShotPush,
            Algorithm::TwoShot,
            Algorithm::ShardPush,
            Algorithm::Ring,
        ],
        Kind::AllReduceNorm => vec![Algorithm::OneShotPush, Algorithm::LinePush],
        _ => vec![Algorithm::OneShotPush, Algorithm::OneShotPull],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossmesh::collective::{Connection, Determinism, Situation, Table, choose};

    #[test]
    fn every_size_has_launches_that_fit_it() {
        for algorithm in Algorithm::ALL {
            for bytes in [0, 1, 16, 1 << 10, 64 << 10, 1 << 20, 256 << 20] {
                for most in [1, 33, 132] {
                    let found = launches(Kind::AllReduce, algorithm, bytes, most, false);
                    assert!(!found.is_empty(), "{algorithm} {bytes} {most}");
                    assert!(found.len() <= 28, "{algorithm} {bytes} {most}: {}", found.len());
                    let threads = |launch: &Launch| u32::from(launch.blocks) * u32::from(launch.threads);
                    assert!(found.iter().all(|launch| (1..=512 * u32::from(most)).contains(&threads(launch))));
                }
            }
        }
    }

    #[test]
    fn small_calls_get_few_threads_and_large_ones_many() {
        let of = |bytes| launches(Kind::AllReduce, Algorithm::OneShotPush, bytes, 132, false);
        assert!(of(1 << 10).iter().all(|launch| u64::from(launch.blocks) * u64::from(launch.threads) <= 256));
        assert!(of(64 << 20).iter().all(|launch| launch.blocks >= 33));
    }

    #[test]
    fn a_table_that_names_a_launch_gets_it() {
        let machine = Table::built_in("sm_90", 2).unwrap().machine;
        for bytes in [0, 8, 1 << 10, 24 << 10, 64 << 10, 1 << 20] {
            for algorithm in algorithms(Kind::AllReduce) {
                for launch in launches(Kind::AllReduce, algorithm, bytes, 132, true) {
                    let table = Table::of_launch(machine.clone(), Kind::AllReduce, true, &launch);
                    let situation = Situation {
                        kind: Kind::AllReduce,
                        bytes,
                        determinism: Determinism::RankIdentical,
                        captured: true,
                        registered: true,
                        connection: Connection::FullNvlink,
                        ranks: 2,
                        push_capacity: 1 << 30,
                        line_capacity: 1 << 30,
                        most_blocks: 132,
                    };
                    let choice = choose(&situation, Some(&table), None).unwrap();
                    let got = (choice.algorithm, choice.blocks, choice.threads);
                    assert_eq!(got, (algorithm, launch.blocks, launch.threads), "{bytes} bytes");
                }
            }
        }
    }
}
