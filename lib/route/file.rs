//! Plans as files. In: a manifest, options, topology, maybe a machine. Out: a file, and back. Guarantee: versioned and
//! checksummed; what is read passes all checks that building passes; a file of another version, topology, machine or route
//! is refused with both values. Links are followed, and only regular files are replaced, by whole ones.
//!
//! A file holds what a plan follows from, and the digest that ranks compare before the first byte. What a rank derives from
//! it (cells, flows) is not in it: deriving it takes less time than reading the manifest does, it differs from rank to
//! rank, and a reader need not trust it.
//!
//! Layout: 8 bytes of magic, 32 bits of version, 64 bits of length, so many bytes of content, their SHA-256; numbers are
//! little-endian.

use super::RouteOptions;
use super::file_topology::TopologyMark;
use crate::base::Rank;
use crate::layout::{Layout, LayoutError, LayoutFields};
use crate::plan::{Digest, Manifest, ManifestDigest, PlanError, Transform};
use crate::topology::{LinkRate, Machine, Topology};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

const MAGIC: &[u8; 8] = b"CMPLAN\r\n";
const HEAD: usize = 8 + 4 + 8;
const CHECKSUM: usize = 32;

/// A plan file that cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlanFileError {
    /// It cannot be read or written.
    #[error("plan file {path:?}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It would replace a pipe, a device or a folder.
    #[error("{path:?} is no regular file; save the plan to a regular file or under a new name")]
    NotRegular {
        /// What is there.
        path: PathBuf,
    },
    /// It is something else.
    #[error("{path:?} is no plan file: it begins with {found:02x?}; give one that crossmesh plan --save wrote")]
    Magic {
        /// The file.
        path: PathBuf,
        /// Its first bytes.
        found: Vec<u8>,
    },
    /// Another version wrote it.
    #[error("plan file {path:?} has version {found} and this build reads version {expected}; write it again")]
    Version {
        /// The file.
        path: PathBuf,
        /// Version in it.
        found: u32,
        /// Version of this build.
        expected: u32,
    },
    /// It is shorter or longer than it says.
    #[error(
        "plan file {path:?} has {found} bytes and should have {expected}; it was cut off or added to: write it again"
    )]
    Length {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        found: u64,
        /// What its head says.
        expected: u64,
    },
    /// Its checksum does not fit.
    #[error(
        "plan file {path:?} is damaged: its content has SHA-256 {found} and should have {expected}; write it again"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Of its content.
        found: String,
        /// As the file says.
        expected: String,
    },
    /// Its content makes no sense.
    #[error("plan file {path:?} cannot be understood; write it again")]
    Content {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: postcard::Error,
    },
    /// A layout has ranks that the job does not.
    #[error("plan file {path:?}: layout {layout} has rank {rank}, and the file is for {ranks} ranks; write it again")]
    Outside {
        /// The file.
        path: PathBuf,
        /// Number of the layout.
        layout: usize,
        /// Its greatest rank.
        rank: Rank,
        /// Ranks of the job.
        ranks: usize,
    },
    /// A layout cannot be.
    #[error("plan file {path:?}: layout {layout} cannot be; write it again")]
    Layout {
        /// The file.
        path: PathBuf,
        /// Number of the layout.
        layout: usize,
        /// Why.
        #[source]
        source: LayoutError,
    },
    /// A tensor names a layout that the file does not have.
    #[error("plan file {path:?}: tensor {tensor:?} has layout {layout} of {layouts}; write it again")]
    NoLayout {
        /// The file.
        path: PathBuf,
        /// Tensor.
        tensor: String,
        /// Number of the layout.
        layout: u32,
        /// How many there are.
        layouts: usize,
    },
    /// Its manifest cannot be planned.
    #[error("plan file {path:?}")]
    Plan {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: PlanError,
    },
    /// This build encodes the manifest in another way.
    #[error(
        "plan file {path:?} has digest {found} and this build gives its manifest {expected}; write it again with this build"
    )]
    Digest {
        /// The file.
        path: PathBuf,
        /// In the file.
        found: String,
        /// Computed now.
        expected: String,
    },
    /// It was made for something else.
    #[error("plan file {path:?} was made for {what} {found}, and here it is {expected}; make a plan for this job")]
    Other {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: String,
        /// Value in the file.
        found: String,
        /// Value here.
        expected: String,
    },
}

/// A plan that can be kept: what it follows from.
#[derive(Debug, Clone)]
pub struct SavedPlan {
    /// All tensors.
    pub manifest: Arc<Manifest>,
    /// Route.
    pub options: RouteOptions,
    /// Of whose ranks.
    topology: TopologyMark,
    /// Where a machine was named.
    machine: Option<MachineMark>,
}

/// What tells machines apart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct MachineMark {
    name: String,
    /// Of places, devices, cards and rates; names may differ.
    digest: Digest,
}

impl MachineMark {
    fn new(machine: &Machine) -> Self {
        let Machine { name, topology, devices, nics, nvlink } = machine;
        let devices: Vec<(u32, &[u32])> = devices.iter().map(|device| (device.gpu, &device.nics[..])).collect();
        let rate = |rate: &LinkRate| (rate.bytes_per_second, rate.latency_ns);
        let nics: Vec<(u64, u64)> = nics.iter().map(|nic| rate(&nic.rate)).collect();
        // Numbers alone, whatever fields are called.
        let text = format!("{:?} {devices:?} {nics:?} {:?}", TopologyMark::new(topology), rate(nvlink));
        Self { name: name.clone(), digest: Sha256::digest(text).into() }
    }

    /// As a person sees it: names may be equal where rates are not.
    fn text(&self) -> String {
        format!("{} ({})", self.name, hexadecimal(&self.digest[..4]))
    }
}

/// What stands in the file: layouts when it is written, and what layouts are made of when it is read.
#[derive(Serialize, Deserialize)]
struct Content<L> {
    options: RouteOptions,
    topology: TopologyMark,
    layouts: Vec<L>,
    tensors: Vec<StoredTensor>,
    machine: Option<MachineMark>,
    digest: Digest,
}

#[derive(Serialize, Deserialize)]
struct StoredTensor {
    name: String,
    source: u32,
    destination: u32,
    transform: Transform,
}

/// Numbers distinct layouts.
#[derive(Default)]
struct Layouts {
    numbers: HashMap<Arc<Layout>, u32>,
    by_pointer: HashMap<*const Layout, u32>,
    list: Vec<Layout>,
}

impl Layouts {
    fn number(&mut self, layout: &Arc<Layout>) -> u32 {
        if let Some(&known) = self.by_pointer.get(&Arc::as_ptr(layout)) {
            return known;
        }
        let next = self.list.len() as u32;
        let number = *self.numbers.entry(layout.clone()).or_insert(next);
        if number == next {
            self.list.push(Layout::clone(layout));
        }
        self.by_pointer.insert(Arc::as_ptr(layout), number);
        number
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn digest(manifest: &Manifest, options: RouteOptions, topology: &TopologyMark) -> Digest {
    ManifestDigest::new(manifest, format!("{} {} {topology:?}", options.kind, options.injection).as_bytes()).root
}

/// The regular file that `path` is or leads to, or a name that is free.
fn target(path: &Path) -> Result<PathBuf, PlanFileError> {
    let failed = |source| PlanFileError::Io { path: path.to_path_buf(), source };
    match std::fs::metadata(path) {
        Ok(facts) if facts.is_file() => path.canonicalize().map_err(failed),
        Ok(_) => Err(PlanFileError::NotRegular { path: path.to_path_buf() }),
        // A link that leads nowhere stays as it is.
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => Ok(path.to_path_buf()),
        Err(error) => Err(failed(error)),
    }
}

impl SavedPlan {
    /// Version of the files that this build writes and reads; it goes up with every other layout of them.
    pub const VERSION: u32 = 3;

    /// A plan for the ranks of `topology`.
    pub fn new(manifest: Arc<Manifest>, topology: &Topology, options: RouteOptions) -> Result<Self, PlanError> {
        manifest.check_ranks(topology.size())?;
        Ok(Self { manifest, options, topology: TopologyMark::new(topology), machine: None })
    }

    /// A plan for the ranks of `machine`; [`SavedPlan::expect_machine`] refuses any other.
    pub fn for_machine(manifest: Arc<Manifest>, machine: &Machine, options: RouteOptions) -> Result<Self, PlanError> {
        Ok(Self { machine: Some(MachineMark::new(machine)), ..Self::new(manifest, &machine.topology, options)? })
    }

    /// Ranks of the job that it is for.
    pub fn rank_count(&self) -> usize {
        self.topology.rank_count()
    }

    /// Writes it to a file, under another name first: a file that exists is whole. Links are followed; what is no regular
    /// file is refused.
    pub fn save(&self, path: &Path) -> Result<(), PlanFileError> {
        let failed = |source| PlanFileError::Io { path: path.to_path_buf(), source };
        let bytes = self.to_bytes(path)?;
        let target = target(path)?;
        let mut part = target.as_os_str().to_owned();
        part.push(format!(".{}.part", std::process::id()));
        let part = PathBuf::from(part);
        let written = std::fs::write(&part, bytes).and_then(|()| std::fs::rename(&part, &target));
        if written.is_err() {
            // What is left of it is of no use; the first error counts.
            let _ = std::fs::remove_file(&part);
        }
        written.map_err(failed)
    }

    /// The bytes of its file; `path` is its name in errors.
    pub fn to_bytes(&self, path: &Path) -> Result<Vec<u8>, PlanFileError> {
        let mut layouts = Layouts::default();
        let tensors = self.manifest.tensors().iter().map(|tensor| StoredTensor {
            name: tensor.name.clone(),
            source: layouts.number(&tensor.source),
            destination: layouts.number(&tensor.destination),
            transform: tensor.transform,
        });
        let tensors = tensors.collect();
        let content = postcard::to_allocvec(&Content {
            options: self.options,
            topology: self.topology.clone(),
            layouts: layouts.list,
            tensors,
            machine: self.machine.clone(),
            digest: digest(&self.manifest, self.options, &self.topology),
        });
        let content = content.map_err(|source| PlanFileError::Content { path: path.to_path_buf(), source })?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend(Self::VERSION.to_le_bytes());
        bytes.extend((content.len() as u64).to_le_bytes());
        bytes.extend(&content);
        bytes.extend(Sha256::digest(&content));
        Ok(bytes)
    }

    /// Reads a file.
    pub fn load(path: &Path) -> Result<Self, PlanFileError> {
        let bytes = std::fs::read(path).map_err(|source| PlanFileError::Io { path: path.to_path_buf(), source })?;
        Self::from_bytes(&bytes, path)
    }

    /// Reads the bytes of a file; `path` is its name in errors.
    pub fn from_bytes(bytes: &[u8], path: &Path) -> Result<Self, PlanFileError> {
        let path = path.to_path_buf();
        let content = unwrap(bytes, &path)?;
        let unread = |source| PlanFileError::Content { path: path.clone(), source };
        let Content { options, topology, layouts, tensors, machine, digest: stated } =
            postcard::from_bytes(content).map_err(unread)?;
        let layout = |(number, fields)| layout(number, fields, topology.rank_count(), &path);
        let layouts: Vec<Arc<Layout>> = layouts.into_iter().enumerate().map(layout).collect::<Result<_, _>>()?;
        let mut manifest = Manifest::new();
        for tensor in tensors {
            let find = |layout: u32| {
                let missing = || (path.clone(), tensor.name.clone(), layouts.len());
                layouts
                    .get(layout as usize)
                    .cloned()
                    .ok_or_else(missing)
                    .map_err(|(path, tensor, layouts)| PlanFileError::NoLayout { path, tensor, layout, layouts })
            };
            let (source, destination) = (find(tensor.source)?, find(tensor.destination)?);
            let pushed = manifest.push_with(tensor.name, source, destination, tensor.transform);
            pushed.map_err(|source| PlanFileError::Plan { path: path.clone(), source })?;
        }
        let computed = digest(&manifest, options, &topology);
        if computed != stated {
            let (found, expected) = (hexadecimal(&stated), hexadecimal(&computed));
            return Err(PlanFileError::Digest { path, found, expected });
        }
        Ok(Self { manifest: Arc::new(manifest), options, topology, machine })
    }

    /// Refuses a plan for other ranks, nodes, domains, rails or card rates, or another route than those of this job, with
    /// the first difference; `path` is its file.
    pub fn expect(&self, topology: &Topology, options: RouteOptions, path: &Path) -> Result<(), PlanFileError> {
        self.expect_route(options, path)?;
        self.expect_topology(topology, true, path)
    }

    fn expect_route(&self, options: RouteOptions, path: &Path) -> Result<(), PlanFileError> {
        if self.options.kind != options.kind {
            return Err(other(path, "route", &self.options.kind, &options.kind));
        }
        match self.options.injection == options.injection {
            true => Ok(()),
            false => Err(other(path, "injection", &self.options.injection, &options.injection)),
        }
    }

    fn expect_topology(&self, topology: &Topology, with_cards: bool, path: &Path) -> Result<(), PlanFileError> {
        match self.topology.difference(&TopologyMark::new(topology), with_cards) {
            Some((what, found, expected)) => Err(other(path, &what, &found, &expected)),
            None => Ok(()),
        }
    }

    /// The same for a plan of [`SavedPlan::for_machine`], which also refuses other devices, cards and rates. A plan that
    /// names no machine and tells of no cards is held to ranks, nodes and domains.
    pub fn expect_machine(&self, machine: &Machine, options: RouteOptions, path: &Path) -> Result<(), PlanFileError> {
        let here = MachineMark::new(machine);
        match self.machine.as_ref().filter(|made| made.digest != here.digest) {
            Some(made) => Err(other(path, "cluster", &made.text(), &here.text())),
            None => {
                self.expect_route(options, path)?;
                self.expect_topology(&machine.topology, self.topology.tells_cards(), path)
            }
        }
    }
}

/// Layout number `number` of a file for `ranks` ranks. That its mesh is no larger is found out first: what is made of a
/// mesh grows with it, and few bytes can state very many ranks.
fn layout(number: usize, fields: LayoutFields, ranks: usize, path: &Path) -> Result<Arc<Layout>, PlanFileError> {
    let greatest = fields.mesh().greatest_rank();
    if greatest.index() >= ranks {
        return Err(PlanFileError::Outside { path: path.to_path_buf(), layout: number, rank: greatest, ranks });
    }
    let bad = |source: LayoutError| PlanFileError::Layout { path: path.to_path_buf(), layout: number, source };
    Ok(Arc::new(Layout::try_from(fields).map_err(bad)?))
}

fn other(path: &Path, what: &str, found: &dyn Display, expected: &dyn Display) -> PlanFileError {
    let (what, found, expected) = (what.to_string(), found.to_string(), expected.to_string());
    PlanFileError::Other { path: path.to_path_buf(), what, found, expected }
}

/// The content of a whole, undamaged file of this version.
fn unwrap<'a>(bytes: &'a [u8], path: &Path) -> Result<&'a [u8], PlanFileError> {
    let path = || path.to_path_buf();
    if !bytes.starts_with(MAGIC) {
        return Err(PlanFileError::Magic { path: path(), found: bytes.iter().take(MAGIC.len()).copied().collect() });
    }
    let number = |range: std::ops::Range<usize>| -> Option<u64> {
        Some(bytes.get(range)?.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte)))
    };
    let short = || PlanFileError::Length { path: path(), found: bytes.len() as u64, expected: HEAD as u64 };
    let version = number(8..12).ok_or_else(short)? as u32;
    if version != SavedPlan::VERSION {
        return Err(PlanFileError::Version { path: path(), found: version, expected: SavedPlan::VERSION });
    }
    let length = number(12..HEAD).ok_or_else(short)?;
    let expected = length.saturating_add((HEAD + CHECKSUM) as u64);
    if bytes.len() as u64 != expected {
        return Err(PlanFileError::Length { path: path(), found: bytes.len() as u64, expected });
    }
    let (content, stated) = bytes[HEAD..].split_at(length as usize);
    let computed = Sha256::digest(content);
    if computed.as_slice() != stated {
        let (found, expected) = (hexadecimal(&computed), hexadecimal(stated));
        return Err(PlanFileError::Damaged { path: path(), found, expected });
    }
    Ok(content)
}
