//! Single tensors with explicit layouts.
//!
//! In: a JSON file with a list of cases, maybe the name of one. Out: [`Case`]s: a manifest of one tensor, the domain of
//! every rank, what a right plan moves. Guarantee: a file is used as a whole or refused with the case and the value that
//! is wrong; unknown keys are refused.

mod error;

pub(crate) use error::CaseError;

use crate::plain_file;
use crossmesh::base::{Rank, json};
use crossmesh::layout::{Dtype, Layout, Mesh, Placement};
use crossmesh::plan::Manifest;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Between the path of a file and the name of a case in it.
const NAME_MARK: char = '#';

/// A tensor with two layouts.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// Mesh and placements of the source and of the destination, for people.
    pub(crate) sides: [String; 2],
    /// One tensor, named as the case.
    pub(crate) manifest: Arc<Manifest>,
    /// Domain of every rank, as the file numbers them.
    pub(crate) domains: Option<Vec<u32>>,
    pub(crate) expect: Option<Expect>,
    /// Ranks that it needs.
    pub(crate) ranks: usize,
}

/// What a right plan of a case moves, in bytes.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object of byte counts")]
pub(crate) struct Expect {
    /// Distinct regions and their overlapping pairs, which say how the bytes were counted.
    #[serde(rename = "source_classes")]
    _source_classes: Option<u64>,
    #[serde(rename = "destination_classes")]
    _destination_classes: Option<u64>,
    #[serde(rename = "contributions")]
    _contributions: Option<u64>,
    pub(crate) unique_bytes: Option<u64>,
    pub(crate) delivered_bytes: Option<u64>,
    pub(crate) flat_inter_domain_bytes: Option<u64>,
    pub(crate) hierarchical_inter_domain_bytes: Option<u64>,
    /// By domain; those that nothing enters are left out.
    pub(crate) ingress_per_domain: Option<BTreeMap<u32, u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with name, shape, dtype, src and dst")]
struct CaseText {
    name: String,
    shape: Vec<u64>,
    dtype: String,
    src: SideText,
    dst: SideText,
    domains: Option<Vec<u32>>,
    expect: Option<Expect>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with mesh, ranks and placements")]
struct SideText {
    mesh: Vec<u32>,
    ranks: Vec<u32>,
    placements: Vec<String>,
}

impl fmt::Display for SideText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape: Vec<String> = self.mesh.iter().map(u32::to_string).collect();
        write!(formatter, "mesh {}, {}", shape.join("x"), self.placements.join(" "))
    }
}

/// Reads `FILE` or `FILE#NAME`.
pub(crate) fn read(text: &str) -> Result<Vec<Case>, CaseError> {
    let (path, name) = split(text);
    if path.as_os_str().is_empty() {
        return Err(CaseError::NoFile { text: text.to_string() });
    }
    let file = plain_file::read(&path).map_err(|source| CaseError::Read { path: path.clone(), source })?;
    let cases = parse(&file, &path)?;
    let Some(name) = name else {
        return if cases.is_empty() { Err(CaseError::None { path }) } else { Ok(cases) };
    };
    match cases.iter().find(|case| case.name == name) {
        Some(case) => Ok(vec![case.clone()]),
        None => {
            let present: Vec<String> = cases.iter().map(|case| format!("{:?}", case.name)).collect();
            Err(CaseError::Unknown { path, name: name.to_string(), present: present.join(", ") })
        }
    }
}

/// All cases of a file; `path` names it in messages.
pub(crate) fn parse(file: &[u8], path: &Path) -> Result<Vec<Case>, CaseError> {
    let path = || path.to_path_buf();
    let texts: Vec<CaseText> = json::read_bytes(file).map_err(|source| CaseError::Form { path: path(), source })?;
    let cases = texts.into_iter().map(case).collect::<Result<Vec<_>, _>>()?;
    let mut seen = BTreeSet::new();
    match cases.iter().find(|case| !seen.insert(case.name.as_str())) {
        Some(case) => Err(CaseError::Repeated { path: path(), name: case.name.clone() }),
        None => Ok(cases),
    }
}

/// The file of `FILE` or `FILE#NAME`.
pub(crate) fn path(text: &str) -> PathBuf {
    split(text).0
}

/// The path ends at the first mark before which there is a file, since both path and name may contain marks.
fn split(text: &str) -> (PathBuf, Option<&str>) {
    let whole = PathBuf::from(text);
    if whole.exists() {
        return (whole, None);
    }
    let marks = text.match_indices(NAME_MARK).map(|(at, _)| at);
    let at = marks.clone().find(|&at| Path::new(&text[..at]).exists()).or_else(|| marks.min());
    at.map_or((whole, None), |at| (PathBuf::from(&text[..at]), Some(&text[at + 1..])))
}

fn case(text: CaseText) -> Result<Case, CaseError> {
    let CaseText { name, shape, dtype, src, dst, domains, expect } = text;
    if shape.contains(&0) {
        return Err(CaseError::Empty { case: name, shape });
    }
    let dtype = Dtype::parse(&dtype).map_err(|source| CaseError::Dtype { case: name.clone(), source })?;
    let last = src.ranks.iter().chain(&dst.ranks).max().copied();
    if let (Some(domains), Some(last)) = (&domains, last)
        && last as usize >= domains.len()
    {
        return Err(CaseError::Domains { case: name, domains: domains.len(), last });
    }
    let ranks = domains.as_ref().map_or(last.map_or(0, |last| last as usize + 1), Vec::len);
    let sides = [src.to_string(), dst.to_string()];
    let source = layout(&name, "src", &shape, dtype, src)?;
    let destination = layout(&name, "dst", &shape, dtype, dst)?;
    let planned = |source| CaseError::Plan { case: name.clone(), source };
    let mut manifest = Manifest::new();
    manifest.push(name.clone(), source, destination).map_err(planned)?;
    manifest.check_ranks(ranks).map_err(planned)?;
    Ok(Case { manifest: Arc::new(manifest), name, sides, domains, expect, ranks })
}

fn layout(
    case: &str,
    side: &'static str,
    shape: &[u64],
    dtype: Dtype,
    text: SideText,
) -> Result<Arc<Layout>, CaseError> {
    let placements = text.placements.iter().map(|text| text.parse()).collect::<Result<Vec<Placement>, _>>();
    let placements = placements.map_err(|source| CaseError::Placement { case: case.into(), side, source })?;
    let made = Mesh::new(text.mesh, text.ranks.into_iter().map(Rank).collect())
        .and_then(|mesh| Layout::new(shape.to_vec(), dtype, Arc::new(mesh), placements));
    made.map(Arc::new).map_err(|source| CaseError::Layout { case: case.into(), side, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;

    const GOOD: &str = r#"{"name": "a#b", "shape": [4, 8], "dtype": "BF16", "domains": [0, 0, 7],
        "src": {"mesh": [2], "ranks": [0, 1], "placements": ["shard(0)"]},
        "dst": {"mesh": [1], "ranks": [2], "placements": ["replicate"]}, "expect": {"unique_bytes": 64}}"#;

    fn refusal(text: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c#ses.json");
        std::fs::write(&path, text).unwrap();
        Failure::new(2, read(path.to_str().unwrap()).unwrap_err()).message()
    }

    #[test]
    fn names_and_paths_may_have_marks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c#ses.json");
        std::fs::write(&path, format!("[{GOOD}]")).unwrap();
        let path = path.to_str().unwrap();
        let cases = read(&format!("{path}#a#b")).unwrap();
        assert_eq!((cases.len(), cases[0].name.as_str(), cases[0].ranks), (1, "a#b", 3));
        assert_eq!(cases[0].domains.as_deref(), Some(&[0, 0, 7][..]));
        assert_eq!(read(path).unwrap()[0].expect.as_ref().unwrap().unique_bytes, Some(64));
        let error = read(&format!("{path}#c")).unwrap_err().to_string();
        assert!(error.contains("no case \"c\"; it has: \"a#b\""), "{error}");
        assert!(matches!(read("absent.json#a"), Err(CaseError::Read { path, .. }) if path == Path::new("absent.json")));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let changed = |from: &str, to: &str| {
            assert!(GOOD.contains(from), "{from}");
            refusal(&format!("[{}]", GOOD.replace(from, to)))
        };
        for (from, to, part) in [
            ("\"dtype\"", "\"type\"", "unknown field `type`"),
            ("unique_bytes", "bytes", "unknown field `bytes`"),
            ("[4, 8]", "[4, 0]", "case \"a#b\": shape [4, 0] has no elements"),
            ("[4, 8]", "[4294967296, 4294967296]", "more than 64 bits"),
            ("BF16", "BF17", "BF17"),
            ("shard(0)", "shard(2)", "src"),
            ("shard(0)", "split(0)", "\"split(0)\" is no placement"),
            ("\"mesh\": [2]", "\"mesh\": [3]", "3 slots and 2 ranks"),
            ("\"ranks\": [2]", "\"ranks\": [3]", "rank 3"),
            ("[0, 1]", "[0, 0]", "stands in the mesh twice"),
            ("[0, 0, 7]", "[0, 7]", "case \"a#b\": domains lists 2 ranks, and the meshes name rank 2;"),
        ] {
            let error = changed(from, to);
            assert!(error.contains(part), "{from} -> {to}: {error}");
        }
        let error = changed("[4, 8]", "[18446744073709551615, 2]");
        assert_eq!(error.matches("use a smaller shape").count(), 1, "{error}");
        assert!(error.contains("case \"a#b\"") && error.contains("[18446744073709551615, 2"), "{error}");
        assert!(refusal("[]").contains("holds no case"));
        let error = refusal("[1]");
        assert!(error.contains("integer `1`, expected an object with name") && !error.contains("struct"), "{error}");
        assert!(refusal("{}").contains("is no file of cases"));
        assert!(refusal(&format!("[{GOOD}, {GOOD}]")).contains("two cases \"a#b\""));
    }
}
