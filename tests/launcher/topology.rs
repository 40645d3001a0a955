//! `crossmesh topo` and the binding of ranks, as users see them.

use crate::job::{crossmesh, finish, shell_ranks, starters};
use std::fs;

fn topo(arguments: &[&str]) -> crate::job::Finished {
    let mut command = crossmesh();
    command.arg("topo").args(arguments);
    finish(command)
}

#[test]
fn a_rack_is_one_domain_of_eighteen_nodes_that_are_alike() {
    let shown = topo(&["--from", "gb200-nvl72:1", "--matrix"]);
    assert_eq!(shown.code, Some(0), "{}", shown.error);
    let lines: Vec<_> = shown.output.lines().collect();
    assert_eq!(lines[0], "1 NVLink domain, 18 nodes, 72 GPUs, 72 NICs in use");
    assert_eq!(lines[3], "node0, node1, node2, node3 and 14 more: 18 nodes, alike");
    let words: Vec<Vec<_>> = lines[5..9].iter().map(|line| line.split_whitespace().collect()).collect();
    // Each GPU has the NIC of its number, which is on its socket.
    for (gpu, row) in words.iter().enumerate() {
        let used: Vec<_> = row.iter().filter(|word| word.ends_with('*')).collect();
        assert_eq!((row[0], used), (format!("GPU{gpu}").as_str(), vec![&"50*"]), "{row:?}");
    }
    assert!(lines[5].contains("X         NV18 900") && lines[5].contains("P2C 50*  P2C 50   SYS 50   SYS 50   0-71"));
    assert!(lines[8].ends_with("P2C 50   P2C 50*  72-143  1     0"), "{}", lines[8]);
}

#[test]
fn what_is_written_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let (json, svg) = (folder.path().join("t.json"), folder.path().join("t.svg"));
    let (json_text, svg_text) = (json.to_str().unwrap(), svg.to_str().unwrap());
    let first = topo(&["--from", "2x[4gpu,2nic@50GB,nvlink450GB]", "--json", json_text, "--svg", svg_text]);
    assert_eq!(first.code, Some(0), "{}", first.error);
    let again = topo(&["--from", json_text]);
    assert_eq!(again.output, first.output);
    assert!(first.output.contains("shared by 2 GPUs"), "{}", first.output);
    let contents: serde_json::Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let gpus = &contents["hierarchy"]["nodes"][1]["gpus"];
    assert_eq!((gpus[3]["nics"][0]["device"].as_str(), gpus[3]["domain"].as_u64()), (Some("mlx5_1"), Some(1)));
    let picture = fs::read_to_string(&svg).unwrap();
    assert_eq!((picture.matches(">GPU ").count(), picture.matches(">mlx5_").count()), (8, 4));
    assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));
}

#[test]
fn what_cannot_be_shown_says_why() {
    for (from, part) in [
        ("gb300", "unknown cluster \"gb300\""),
        ("/absent.xml", "--from /absent.xml cannot be read"),
        ("/proc/version", "--from /proc/version is no topology"),
        ("2x[gpu]", "cannot be read; write NODESx["),
        ("gb200-nvl72:100000", "has 7200000 GPUs; hosts are shown one by one of at most 65536"),
        ("4096x[4096gpu,4096nic@50GB,nvlink450GB]", "has 16777216 GPUs"),
    ] {
        let refused = topo(&["--from", from]);
        assert_eq!(refused.code, Some(2), "{from}: {}", refused.error);
        assert!(refused.error.contains(part), "{from}: {}", refused.error);
    }
}

#[test]
fn places_that_cannot_be_written_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (good, absent) = (folder.path().join("t.json"), folder.path().join("absent/t.svg"));
    for (option, path) in [("--svg", absent.as_path()), ("--json", &absent), ("--svg", folder.path())] {
        let other = if option == "--svg" { "--json" } else { "--svg" };
        let arguments = ["--from", "hgx-h100:1", other, good.to_str().unwrap(), option, path.to_str().unwrap()];
        let refused = topo(&arguments);
        assert_eq!((refused.code, refused.output.as_str()), (Some(2), ""), "{}", refused.error);
        assert!(refused.error.contains(option) && refused.error.contains(path.to_str().unwrap()), "{}", refused.error);
        assert!(!good.exists(), "all or nothing");
    }
}

/// Benches find it out before they measure.
#[test]
fn benches_refuse_places_that_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let absent = folder.path().join("absent/t.json");
    for what in ["reshard", "p2p", "allreduce", "norm", "crossover", "limits", "idle", "plan", "tune"] {
        let option = if what == "tune" { "--output" } else { "--json" };
        let mut command = crossmesh();
        command.args(["bench", what].iter().skip(usize::from(what == "tune"))).args([option, absent.to_str().unwrap()]);
        let refused = finish(command);
        assert_eq!((refused.code, refused.output.as_str()), (Some(2), ""), "{what}: {}", refused.error);
        assert!(refused.error.contains(&format!("{option}: cannot write")), "{what}: {}", refused.error);
    }
}

#[test]
fn nodes_of_a_job_are_merged_by_rank_0() {
    for starter in starters() {
        let mut command = crossmesh();
        let program = env!("CARGO_BIN_EXE_crossmesh");
        command.args(["run", "--starter", starter, "-n", "3", "--prefix", "never", "--", program, "topo"]);
        let job = finish(command);
        assert_eq!(job.code, Some(0), "{starter}: {}", job.error);
        assert!(job.output.lines().next().unwrap().contains(", 1 node, "), "{starter}: {}", job.output);
        assert_eq!(job.output.matches("  sysfs: ").count(), 1, "{starter}: {}", job.output);
    }
}

#[test]
fn ranks_run_where_the_table_says() {
    let script = "grep Cpus_allowed_list /proc/self/status | cut -f 2";
    for starter in starters() {
        for bind in ["near", "core", "none"] {
            let job = finish(shell_ranks(starter, &["-n", "2", "--bind", bind, "--report-bindings"], script));
            assert_eq!(job.code, Some(0), "{starter}: {}", job.error);
            let rows: Vec<Vec<_>> = job.error.lines().map(|line| line.split_whitespace().collect()).collect();
            let title = rows.iter().position(|row| row.starts_with(&["rank", "host", "CPUs"])).unwrap();
            for rank in 0..2u32 {
                let row = &rows[title + 1 + rank as usize];
                assert_eq!(row[0], rank.to_string(), "{starter} {bind}: {}", job.error);
                match bind {
                    "none" => assert_eq!(row[2..4], ["not", "bound"], "{starter}"),
                    _ => assert_eq!(row[2], job.lines_of(rank)[0], "{starter} {bind}"),
                }
            }
        }
    }
}
