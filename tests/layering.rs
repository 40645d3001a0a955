//! The rules that the source tree keeps: which module may use which, and where what may stand.
//!
//! In: the files of the repository. Out: a list of findings, each with file and line. Guarantee: a rule that is broken
//! anywhere fails a test, and every rule is shown to find what it is for.

mod paths;
mod tokens;

use paths::module_uses;
use std::fs;
use std::path::{Path, PathBuf};
use tokens::{Kind, Token, tokens};

/// The library's modules; each may use those before it.
const ORDER: [&str; 11] = [
    "base",
    "topology",
    "layout",
    "plan",
    "route",
    "bootstrap",
    "memory",
    "transport",
    "execute",
    "collective",
    "comm",
];
/// Folders under lib that are packages of their own.
const PACKAGES: [&str; 4] = ["lib/bootstrap-mpi/", "lib/topology-hwloc/", "lib/capi/", "lib/python/"];
/// Where `unsafe` may stand: what touches raw memory, mapped files, foreign functions, the process's environment (to erase
/// a key from it), a process between fork and exec, or the allocator that a test counts with.
const UNSAFE: [&str; 16] = [
    "lib/memory/",
    "lib/collective/device/",
    "lib/comm/collective",
    "lib/transport/",
    "lib/topology/discover/nvml",
    "lib/topology/discover/hwloc",
    "lib/topology-hwloc/",
    "lib/bootstrap/mpi",
    "lib/bootstrap/select",
    "lib/bootstrap-mpi/",
    "lib/capi/",
    "launcher/checkpoint/mapped",
    "launcher/run/agent",
    "netplugin/",
    "tests/gpu/",
    "tests/reshard/allocations",
];
/// The one file that reads the project's environment variables.
const ENVIRONMENT: &str = "lib/base/env.rs";
/// Longest file.
const LINES: usize = 499;
/// Fewest words that say what comes in, what goes out and what is guaranteed.
const HEAD_WORDS: usize = 6;

/// A file of the tree.
struct Source {
    /// From the repository's root, with `/`.
    path: String,
    text: String,
    /// `["plan", "cell"]` for `lib/plan/cell.rs`; `None` outside the library's modules.
    module: Option<Vec<String>>,
}

/// A broken rule.
#[derive(Debug)]
struct Finding {
    path: String,
    line: usize,
    message: String,
}

/// Looks at one file.
type Rule = fn(&Source) -> Vec<Finding>;

impl std::fmt::Display for Finding {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}:{}: {}", self.path, self.line, self.message)
    }
}

impl Source {
    fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_string(), text: text.to_string(), module: module_of(path) }
    }

    fn finding(&self, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, message: message.into() }
    }

    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    fn is_in(&self, places: &[&str]) -> bool {
        places.iter().any(|place| self.path.starts_with(place))
    }

    /// Files that this one makes modules by `#[path = "..."] mod name;`, with the module that each is.
    fn modules_by_path(&self) -> Vec<(String, Vec<String>)> {
        let Some(own) = &self.module else { return Vec::new() };
        let folder = self.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let found = tokens(&self.text);
        let attributes = found.windows(4).enumerate().filter_map(|(at, window)| match window {
            [word, equals, Token { kind: Kind::Text(file), .. }, close]
                if word.is_word("path") && equals.is_mark('=') && close.is_mark(']') =>
            {
                Some((at, file))
            }
            _ => None,
        });
        attributes
            .filter_map(|(at, file)| {
                let keyword = at + found[at..].iter().position(|token| token.is_word("mod"))?;
                let Kind::Word(name) = &found.get(keyword + 1)?.kind else { return None };
                let module = own.iter().chain([name]).cloned().collect();
                Some((format!("{folder}/{file}"), module))
            })
            .collect()
    }
}

/// The module that a file is by its place.
fn module_of(path: &str) -> Option<Vec<String>> {
    let inner = path.strip_prefix("lib/")?.strip_suffix(".rs")?;
    if inner == "lib" || PACKAGES.iter().any(|package| path.starts_with(package)) {
        return None;
    }
    Some(inner.split('/').filter(|part| *part != "mod").map(str::to_string).collect())
}

/// A module uses only modules above it.
fn order(source: &Source) -> Vec<Finding> {
    let Some(path) = &source.module else { return Vec::new() };
    let position = |name: &str| ORDER.iter().position(|module| *module == name);
    let Some(own) = position(&path[0]) else {
        return vec![source.finding(1, format!("module {} has no place in the order of modules", path[0]))];
    };
    let is_root_item = |name: &str| name.starts_with(char::is_uppercase);
    module_uses(&tokens(&source.text), path)
        .into_iter()
        .filter(|used| !is_root_item(&used.module))
        .filter_map(|used| match position(&used.module) {
            Some(other) if other <= own => None,
            Some(_) => Some(source.finding(used.line, format!("{} may not use {} below it", path[0], used.module))),
            None => Some(source.finding(used.line, format!("{} is no module of the library's root", used.module))),
        })
        .collect()
}

/// Every file says at its top what it is for.
fn head(source: &Source) -> Vec<Finding> {
    let head: Vec<_> = source.text.lines().map_while(|line| line.strip_prefix("//!")).collect();
    let words = head.iter().flat_map(|line| line.split_whitespace()).count();
    match words {
        _ if !source.is_rust() => Vec::new(),
        0 => vec![source.finding(1, "no //! head: what comes in, what goes out, what is guaranteed")],
        words if words < HEAD_WORDS => vec![source.finding(1, "the //! head says too little")],
        _ => Vec::new(),
    }
}

/// No file is too long to read in one go.
fn length(source: &Source) -> Vec<Finding> {
    match source.text.lines().count() {
        lines if lines > LINES => vec![source.finding(lines, format!("{lines} lines; split it, {LINES} are allowed"))],
        _ => Vec::new(),
    }
}

/// Unsafe code stands only where raw memory is the subject.
fn unsafe_code(source: &Source) -> Vec<Finding> {
    if source.is_in(&UNSAFE) {
        return Vec::new();
    }
    let message = format!("unsafe code is allowed only in {}", UNSAFE.join(", "));
    find(source, |window| window[0].is_word("unsafe").then(|| message.clone()))
}

/// Environment variables of the project are read in one place; a test may look at what its ranks were given.
fn environment(source: &Source) -> Vec<Finding> {
    if source.path == ENVIRONMENT || source.is_in(&["tests/"]) {
        return Vec::new();
    }
    find(source, |window| {
        let [module, path, function, _, Token { kind: Kind::Text(name), .. }] = window else { return None };
        let reads = path.kind == Kind::Path && ["var", "var_os"].iter().any(|known| function.is_word(known));
        (module.is_word("env") && reads && name.starts_with("CROSSMESH_"))
            .then(|| format!("{name} is read here; declare it in {ENVIRONMENT} and read it through there"))
    })
}

/// Nothing is left open and no test is switched off.
fn unfinished(source: &Source) -> Vec<Finding> {
    find(source, |window| match window {
        [word, mark, ..] if mark.is_mark('!') && (word.is_word("todo") || word.is_word("unimplemented")) => {
            Some("unfinished code".to_string())
        }
        [hash, open, word, ..] if hash.is_mark('#') && open.is_mark('[') && word.is_word("ignore") => {
            Some("a test that does not run".to_string())
        }
        _ => None,
    })
}

/// Findings at every token of a Rust source; `check` sees up to five tokens.
fn find(source: &Source, check: impl Fn(&[Token]) -> Option<String>) -> Vec<Finding> {
    if !source.is_rust() {
        return Vec::new();
    }
    let found = tokens(&source.text);
    (0..found.len())
        .filter_map(|at| {
            let window = &found[at..found.len().min(at + 5)];
            check(window).map(|message| source.finding(window[0].line, message))
        })
        .collect()
}

/// All files with code under the folders that hold it.
fn tree() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = Vec::new();
    for folder in ["lib", "launcher", "tests", "kernels", "netplugin", "slurm"] {
        collect(&root.join(folder), root, &mut sources);
    }
    let by_path: Vec<_> = sources.iter().flat_map(Source::modules_by_path).collect();
    for (path, module) in by_path {
        if let Some(source) = sources.iter_mut().find(|source| source.path == path) {
            source.module = Some(module);
        }
    }
    sources
}

fn collect(folder: &Path, root: &Path, sources: &mut Vec<Source>) {
    // A folder appears when something in it works; until then there is nothing to check.
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let is_code = path
            .extension()
            .and_then(|extension| extension.to_str())
            .is_some_and(|extension| ["rs", "cu", "cuh", "c", "h", "sh", "py", "sbatch"].contains(&extension));
        if path.is_dir() {
            collect(&path, root, sources);
        } else if is_code {
            let relative = path.strip_prefix(root).unwrap().to_str().unwrap();
            sources.push(Source::new(relative, &fs::read_to_string(&path).unwrap()));
        }
    }
}

fn assert_none(rule: impl Fn(&Source) -> Vec<Finding>) {
    let findings: Vec<_> = tree().iter().flat_map(&rule).map(|finding| finding.to_string()).collect();
    assert!(findings.is_empty(), "{} findings\n{}", findings.len(), findings.join("\n"));
}

#[test]
fn modules_use_only_modules_above_them() {
    assert_none(order);
}

#[test]
fn files_begin_with_what_they_are_for() {
    assert_none(head);
}

#[test]
fn files_are_short() {
    assert_none(length);
}

#[test]
fn unsafe_code_keeps_its_place() {
    assert_none(unsafe_code);
}

#[test]
fn environment_is_read_in_one_place() {
    assert_none(environment);
}

#[test]
fn nothing_is_unfinished() {
    assert_none(unfinished);
}

#[test]
fn the_tree_is_seen() {
    let sources = tree();
    for path in ["lib/lib.rs", ENVIRONMENT, "launcher/main.rs", "tests/layering.rs", "tests/rig/hosts.sh"] {
        assert!(sources.iter().any(|source| source.path == path && !source.text.is_empty()), "{path}");
    }
}

#[test]
fn modules_of_files() {
    let module = |path: &str| module_of(path).map(|names| names.join("::"));
    assert_eq!(module("lib/plan/mod.rs").as_deref(), Some("plan"));
    assert_eq!(module("lib/transport/tcp/mod.rs").as_deref(), Some("transport::tcp"));
    assert_eq!(module("lib/plan/cell.rs").as_deref(), Some("plan::cell"));
    for path in ["lib/lib.rs", "lib/capi/lib.rs", "launcher/run/plan.rs", "lib/notes.md"] {
        assert_eq!(module(path), None, "{path}");
    }
    let source = Source::new("lib/plan/cell.rs", "#[cfg(test)]\n#[path = \"cell_tests.rs\"]\nmod tests;\nmod other;");
    let (path, module) = source.modules_by_path().pop().unwrap();
    assert_eq!((path.as_str(), module.join("::").as_str()), ("lib/plan/cell_tests.rs", "plan::cell::tests"));
}

#[test]
fn rules_find_what_they_are_for() {
    let long = "//! Long.\n".repeat(LINES + 1);
    let broken: [(&str, Rule, &str, &str, usize); 14] = [
        ("order", order, "lib/plan/cell.rs", "//! Head.\nuse crate::route::Flow;\n", 2),
        ("order, climbing", order, "lib/base/ids.rs", "use super::super::topology::Place;\n", 1),
        ("order, own root", order, "lib/plan/mod.rs", "\n\nuse super::comm;\n", 3),
        ("order, glob", order, "lib/comm/mod.rs", "use crate::*;", 1),
        ("order, unknown module", order, "lib/comm/mod.rs", "use crate::helpers::x;", 1),
        ("order, module without a place", order, "lib/helpers/mod.rs", "", 1),
        ("no head", head, "lib/plan/mod.rs", "// comment\n//! late\n", 1),
        ("short head", head, "lib/plan/mod.rs", "//! plan\n", 1),
        ("length", length, "tests/ci/x.sh", &long, LINES + 1),
        ("unsafe", unsafe_code, "lib/plan/mod.rs", "fn f() {\n unsafe { g() }\n}", 2),
        ("environment", environment, "launcher/main.rs", "let x = std::env::var(\"CROSSMESH_LOG\");", 1),
        ("environment, os", environment, "lib/comm/mod.rs", "\nenv::var_os(\"CROSSMESH_LOG\")", 2),
        ("unfinished", unfinished, "tests/main.rs", "fn f() { todo!() }", 1),
        ("ignored", unfinished, "lib/plan/mod.rs", "#[test]\n#[ignore = \"slow\"]\nfn f() {}", 2),
    ];
    for (rule, check, path, text, line) in broken {
        let lines: Vec<_> = check(&Source::new(path, text)).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [line], "{rule}");
    }
}

#[test]
fn rules_let_pass_what_is_right() {
    let right: [(Rule, &str, &str); 11] = [
        (order, "lib/route/mod.rs", "use crate::{base::Rank, plan::Cell}; use crate::PROTOCOL_VERSION;"),
        (order, "lib/plan/cell.rs", "mod tests { use super::*; } use super::manifest; use crate::plan::x;"),
        (order, "lib/lib.rs", "pub use crate::comm::Communicator;"),
        (order, "lib/capi/lib.rs", "use crate::handles;"),
        (head, "lib/plan/mod.rs", "//! What moves: a manifest comes in, cells go out."),
        (length, "tests/ci/x.sh", "#!/bin/sh\n"),
        (unsafe_code, "lib/plan/mod.rs", "// unsafe\nlet x = \"unsafe\"; #[deny(unsafe_op_in_unsafe_fn)]"),
        (unsafe_code, "lib/memory/shared.rs", "unsafe { f() }"),
        (environment, ENVIRONMENT, "std::env::var(\"CROSSMESH_LOG\")"),
        (environment, "launcher/run/plan.rs", "command.env(\"CROSSMESH_RANK\", x); std::env::var(\"PATH\")"),
        (unfinished, "lib/plan/mod.rs", "// todo!()\nlet todo = 1; #[test] fn ignore() {}"),
    ];
    for (rule, path, text) in right {
        let findings = rule(&Source::new(path, text));
        assert!(findings.is_empty(), "{path} {text:?}: {}", findings[0]);
    }
}
