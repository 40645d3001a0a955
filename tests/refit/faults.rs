//! Faults while a job runs. In: a rank that is killed, a file system that fills up. Out: nothing. Guarantee: every other
//! rank ends in time with the cause, and nothing is half written.

use crate::job::{CROSSMESH, Job, clean_command, in_repository};
use crate::process;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How long the survivors of a killed rank may take.
const SURVIVORS: Duration = Duration::from_secs(5);

/// The process that is `rank` of the job whose arguments hold `mark`.
fn rank_process(mark: &str, rank: u32) -> Option<i32> {
    let variable = format!("CROSSMESH_RANK={rank}");
    let holds = |path: String, wanted: &dyn Fn(&[&str]) -> bool| {
        let text = std::fs::read(path).unwrap_or_default();
        wanted(&String::from_utf8_lossy(&text).split('\0').collect::<Vec<_>>())
    };
    let processes =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    processes.into_iter().find(|process: &i32| {
        holds(format!("/proc/{process}/cmdline"), &|words| words.get(1) == Some(&"refit") && words.contains(&mark))
            && holds(format!("/proc/{process}/environ"), &|words| words.contains(&variable.as_str()))
    })
}

#[test]
fn the_others_name_a_killed_rank_in_time() {
    const RANKS: u32 = 6;
    for domains in ["--domains 1", "--domains 2"] {
        let folder = tempfile::tempdir().unwrap();
        let json = folder.path().join("out.json");
        let mark = json.display().to_string();
        let job = Job::new(RANKS as usize, &in_repository("slurm/small.model.json")).run_with(domains);
        let job = job.with("--src tp=3 --dst tp=3 --repeat 1000000").path("--json", &json);
        let running = thread::spawn(|| (job.run(), Instant::now()));
        let began = Instant::now();
        while !(0..RANKS).all(|rank| rank_process(&mark, rank).is_some()) {
            assert!(began.elapsed() < Duration::from_secs(30), "the job did not start");
            thread::sleep(Duration::from_millis(20));
        }
        // Long enough that the transfer is being repeated.
        thread::sleep(Duration::from_secs(1));
        let killed = Instant::now();
        kill(Pid::from_raw(rank_process(&mark, 4).unwrap()), Signal::SIGKILL).unwrap();
        let (ended, at) = running.join().unwrap();
        assert!(at - killed < SURVIVORS, "{:?}: {ended:#?}", at - killed);
        assert_eq!(ended.finished.code(), Some(137), "{ended:#?}");
        let first = ended.finished.errors.lines().find(|line| line.starts_with("crossmesh run: rank 4 on host "));
        assert!(first.is_some_and(|line| line.contains("ended with signal 9 (SIGKILL)")), "{ended:#?}");
        let errors = ended.errors();
        assert_eq!(errors.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 3, 5], "{ended:#?}");
        assert!(errors.values().all(|error| error.contains("rank 4 on host")), "{ended:#?}");
        assert!(!json.exists());
    }
}

/// Runs `script` where `$1` is a folder with a file system of `size` of its own; `None` where that is not allowed.
fn on_small_disk(size: &str, folder: &Path, script: &str, words: &[String]) -> Option<process::Finished> {
    let script = format!("mount -t tmpfs -o size={size} tmpfs \"$1\" || exit 77; shift; {script}");
    let first = ["--mount", "--map-root-user", "sh", "-c", &script, "sh"].map(String::from);
    let arguments = [&first[..], &[folder.display().to_string()], words].concat();
    let ended = process::run(&mut clean_command("unshare", &arguments, &[]), Duration::from_secs(60));
    ended.ok().filter(|ended| ended.code() != Some(77) && !ended.errors.starts_with("unshare:"))
}

#[test]
fn a_full_disk_leaves_nothing_on_any_rank() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("disk");
    std::fs::create_dir(&out).unwrap();
    // Four shards of 2 MB each: some fit and some do not.
    let job = Job::new(5, &in_repository("slurm/small.model.json")).with("--src tp=1 --dst tp=4 --verify");
    let words = job.path("--out", &out).words();
    let script = format!(
        "echo kept > {0}/rank-00001.safetensors; \"$@\"; code=$?; \
        ls -A {0} | sed 's/^/left: /'; cat {0}/rank-00001.safetensors; exit $code",
        out.display()
    );
    assert_eq!(words[0], CROSSMESH);
    let Some(ended) = on_small_disk("5m", &out, &script, &words) else {
        eprintln!("not run: no file system can be mounted here, which needs unshare and user namespaces");
        return;
    };
    assert_eq!(ended.code(), Some(1), "{ended:#?}");
    let left: Vec<&str> = ended.output.lines().filter(|line| !line.starts_with('[')).collect();
    assert_eq!(left, ["left: rank-00001.safetensors", "kept"], "{ended:#?}");
    for rank in 0..5 {
        let mine = ended.errors.lines().find(|line| line.starts_with(&format!("[{rank} ")));
        assert!(
            mine.is_some_and(|line| line.contains("cannot write") && line.contains("/disk/rank-0000")),
            "{ended:#?}"
        );
    }
    assert!(
        ended.errors.contains("No space left on device") || ended.errors.contains("no storage space"),
        "{ended:#?}"
    );
}
