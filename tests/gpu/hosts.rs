//! Hosts emulated for jobs over the driver that stands in. In: how many, how many NVLink fabrics join them. Out: namespaces
//! to enter, topology files, a folder that stands for the fabric. Guarantee: each host has a name and namespaces of its own,
//! so that ranks on two of them are told apart; everything ends with this object.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest life of a host that nobody ends, seconds.
const LIFETIME: &str = "400";
/// What a rank's process runs first: it takes the host that its rank falls on.
const ENTER: &str = "number=$((CROSSMESH_RANK * $# / CROSSMESH_SIZE)); shift $number; host=$1; eval \"set -- $PROGRAM\"; \
     [ ! -e \"$STAND_IN_FABRIC/tray$number.json\" ] || export CROSSMESH_TOPOLOGY=\"$STAND_IN_FABRIC/tray$number.json\"; \
     exec nsenter --uts=/proc/$host/ns/uts --ipc=/proc/$host/ns/ipc \"$@\"";
/// GPUs of a host in the topology file.
const GPUS: u32 = 4;

/// Emulated hosts.
pub(crate) struct Hosts {
    holders: Vec<Child>,
    folder: tempfile::TempDir,
}

/// Whether this user may make them.
pub(crate) fn can_emulate() -> bool {
    Command::new("unshare")
        .args(["--uts", "--ipc", "true"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|end| end.success())
}

impl Hosts {
    /// So many, named `tray0` and so on.
    pub(crate) fn new(count: u32) -> Self {
        let hold = |number: u32| {
            let script = format!("hostname tray{number} && exec sleep {LIFETIME}");
            let mut command = Command::new("unshare");
            let child = command.args(["--uts", "--ipc", "sh", "-c", &script]).stdin(Stdio::null()).spawn();
            let child = child.expect("unshare can be started");
            let begun = Instant::now();
            let name = format!("/proc/{}/comm", child.id());
            while std::fs::read_to_string(&name).is_ok_and(|name| name.trim() != "sleep") {
                assert!(begun.elapsed() < Duration::from_secs(10), "an emulated host does not come up");
                std::thread::sleep(Duration::from_millis(5));
            }
            child
        };
        let folder = tempfile::tempdir_in("/dev/shm").expect("a folder in shared memory");
        Self { holders: (0..count).map(hold).collect(), folder }
    }

    /// Lets a command of a rank run on its host; `program` and what follows is the rank's own.
    pub(crate) fn enter(&self, command: &mut Command, program: &[String]) {
        if self.holders.is_empty() {
            command.args(program);
            return;
        }
        let quoted: Vec<String> = program.iter().map(|part| format!("'{part}'")).collect();
        command.env("PROGRAM", quoted.join(" ")).args(["sh", "-c", ENTER, "sh"]);
        command.args(self.holders.iter().map(|holder| holder.id().to_string()));
    }

    /// The folder through which the driver that stands in passes fabric handles.
    pub(crate) fn fabric(&self) -> &Path {
        self.folder.path()
    }

    /// Lets a file say for each host that its GPUs are of a fabric; equal parts of the hosts are in one.
    pub(crate) fn join(&self, fabrics: u32) {
        let hosts = self.holders.len() as u32;
        for host in 0..hosts {
            let text = topology(host * fabrics / hosts);
            std::fs::write(self.folder.path().join(format!("tray{host}.json")), text).expect("a file in a new folder");
        }
    }
}

/// What a host knows whose GPUs are in fabric number `fabric`.
fn topology(fabric: u32) -> String {
    let gpu = |index: u32| {
        format!(
            r#"{{"index": {index}, "pci": "0000:{:02x}:00.0", "nvlinks": [{{"peer": {{"switch": null}}, "links": 18}}],
            "fabric": {{"cluster": "3f1c22e0-7a41-4b6e-9c0e-2d5a90c1b7a{fabric}", "clique": 7, "state": "completed"}}}}"#,
            index + 1
        )
    };
    let gpus: Vec<String> = (0..GPUS).map(gpu).collect();
    format!(r#"{{"version": 1, "hosts": [{{"host": "tray", "gpus": [{}]}}]}}"#, gpus.join(", "))
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for holder in &mut self.holders {
            // One that has ended by itself is as good.
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}
