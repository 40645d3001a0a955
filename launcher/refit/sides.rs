//! Which ranks are sources and which destinations. In: arguments, roles, number of ranks. Out: two lists of ranks.
//! Guarantee: every list is as long as its spec needs and names ranks of the job.

use super::Arguments;
use super::error::RefitError;
use crossmesh::base::env::EnvError;
use crossmesh::base::{Rank, bytes, env};
use crossmesh::execute::Mapped;
use crossmesh::layout::Dtype;
use crossmesh::layout::parallel::ParallelSpec;
use crossmesh::route::RouteOptions;
use std::collections::BTreeSet;

/// Memory that tensors live in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryChoice {
    Shared,
    Private,
}

/// One side as asked for.
#[derive(Debug, Clone)]
pub(crate) struct SideRequest {
    name: &'static str,
    pub(crate) spec: ParallelSpec,
    text: String,
    listed: Option<Vec<Rank>>,
}

/// The arguments, read.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) src: SideRequest,
    pub(crate) dst: SideRequest,
    pub(crate) cast: Option<Dtype>,
    pub(crate) route: RouteOptions,
    pub(crate) memory: MemoryChoice,
    pub(crate) nic_rate: Option<f64>,
    roles: Vec<(String, u32)>,
}

impl Request {
    /// Reads the arguments; needs no ranks.
    pub(crate) fn parse(arguments: &Arguments) -> Result<Self, RefitError> {
        let option = |option, value: &str, allowed: String| RefitError::Option { option, value: value.into(), allowed };
        let mut route = RouteOptions::default();
        if let Some(text) = &arguments.route {
            route.kind = text.parse().map_err(|allowed| option("route", text, allowed))?;
        }
        if let Some(text) = &arguments.injection {
            route.injection = text.parse().map_err(|allowed| option("injection", text, allowed))?;
        }
        let asked = route;
        let route = route.with_environment()?;
        let overridden = (arguments.route.is_some() && asked.kind != route.kind)
            || (arguments.injection.is_some() && asked.injection != route.injection);
        // One rank speaks for all, which have the same arguments.
        if overridden && env::text(env::RANK).is_none_or(|rank| rank == "0") {
            let (kind, injection) = (route.kind, route.injection);
            log::warn!("the environment overrides --route or --injection: route {kind}, injection {injection}");
        }
        check_environment()?;
        let memory = match arguments.memory.as_str() {
            "shared" => MemoryChoice::Shared,
            "private" => MemoryChoice::Private,
            text => return Err(option("memory", text, "allowed: shared, private".into())),
        };
        let cast = match arguments.cast.as_deref() {
            None => None,
            Some("f32") => Some(Dtype::F32),
            Some("f16") => Some(Dtype::F16),
            Some("bf16") => Some(Dtype::BF16),
            Some(text) => return Err(option("cast", text, "allowed: f32, f16, bf16".into())),
        };
        if arguments.repeat == 0 {
            return Err(option("repeat", "0", "run at least once".into()));
        }
        let nic_rate = arguments.nic_rate.as_deref().map(read_rate).transpose()?;
        Ok(Self {
            src: SideRequest::parse("src", &arguments.src, arguments.src_ranks.as_deref())?,
            dst: SideRequest::parse("dst", &arguments.dst, arguments.dst_ranks.as_deref())?,
            cast,
            route,
            memory,
            nic_rate,
            roles: roles(),
        })
    }

    /// Where sides begin when roles do not say so; nowhere when listed sides are no two blocks.
    pub(crate) fn side_starts(&self) -> Vec<Rank> {
        match (&self.src.listed, &self.dst.listed) {
            (None, None) => vec![Rank(0), Rank(self.src.spec.rank_count())],
            (Some(src), Some(dst)) => match (span(src), span(dst)) {
                (Some(src), Some(dst)) if src.1 < dst.0 || dst.1 < src.0 => vec![src.0, dst.0],
                _ => Vec::new(),
            },
            _ => Vec::new(),
        }
    }

    /// Source and destination ranks in a job of `ranks`.
    pub(crate) fn ranks(&self, ranks: usize) -> Result<(Vec<Rank>, Vec<Rank>), RefitError> {
        let (sources, destinations) = (self.src.spec.rank_count(), self.dst.spec.rank_count());
        let roles = match self.roles.as_slice() {
            [first, second, ..] => Some((first, second)),
            _ => None,
        };
        if let Some((first, second)) = roles {
            self.src.check_role(first)?;
            self.dst.check_role(second)?;
        }
        let too_few = || RefitError::TooFewRanks {
            src: self.src.text.clone(),
            sources,
            dst: self.dst.text.clone(),
            destinations,
            ranks,
        };
        // Before any list is made, which would be long for an absurd size.
        if sources.max(destinations) as usize > ranks {
            return Err(too_few());
        }
        let block = |first: u32, count: u32| (first..first.saturating_add(count)).map(Rank).collect::<Vec<_>>();
        let (src, dst) = match (&self.src.listed, &self.dst.listed, roles) {
            (Some(src), Some(dst), _) => (src.clone(), dst.clone()),
            (Some(src), None, Some((first, _))) => (src.clone(), block(first.1, destinations)),
            (Some(src), None, None) => (src.clone(), others(src, destinations)),
            (None, Some(dst), Some(_)) => (block(0, sources), dst.clone()),
            (None, Some(dst), None) => (others(dst, sources), dst.clone()),
            (None, None, Some((first, _))) => (block(0, sources), block(first.1, destinations)),
            (None, None, None) => (block(0, sources), block(sources, destinations)),
        };
        for (side, list) in [(&self.src, &src), (&self.dst, &dst)] {
            if let Some(&rank) = list.iter().find(|rank| rank.index() >= ranks) {
                if side.listed.is_some() {
                    let last = ranks.saturating_sub(1);
                    return Err(RefitError::RankOutside { side: side.name, rank, last });
                }
                return Err(too_few());
            }
        }
        Ok((src, dst))
    }
}

/// The first `count` ranks that `listed` does not name.
fn others(listed: &[Rank], count: u32) -> Vec<Rank> {
    let listed: BTreeSet<Rank> = listed.iter().copied().collect();
    (0..).map(Rank).filter(|rank| !listed.contains(rank)).take(count as usize).collect()
}

/// The first and the last of distinct ranks without gaps.
fn span(listed: &[Rank]) -> Option<(Rank, Rank)> {
    let (&first, &last) = (listed.iter().min()?, listed.iter().max()?);
    (last.index() - first.index() + 1 == listed.len()).then_some((first, last))
}

impl SideRequest {
    fn parse(name: &'static str, text: &str, list: Option<&str>) -> Result<Self, RefitError> {
        let spec = ParallelSpec::parse(text).map_err(|source| RefitError::Spec {
            side: name,
            text: text.to_string(),
            source,
        })?;
        let listed = list.map(|list| read_ranks(name, list)).transpose()?;
        if let Some(listed) = &listed
            && listed.len() as u64 != u64::from(spec.rank_count())
        {
            let (needed, listed) = (spec.rank_count(), listed.len());
            return Err(RefitError::RankListLength { side: name, spec: text.to_string(), needed, listed });
        }
        let mut seen = BTreeSet::new();
        if let Some(&rank) = listed.iter().flatten().find(|&&rank| !seen.insert(rank)) {
            return Err(RefitError::RankRepeated { side: name, text: list.unwrap_or_default().to_string(), rank });
        }
        Ok(Self { name, spec, text: text.to_string(), listed })
    }

    fn check_role(&self, (role, given): &(String, u32)) -> Result<(), RefitError> {
        let needed = self.spec.rank_count();
        if self.listed.is_none() && *given != needed {
            let (role, given, spec) = (role.clone(), *given, self.text.clone());
            return Err(RefitError::RoleSize { role, given, side: self.name, spec, needed });
        }
        Ok(())
    }
}

/// Refuses unreadable variables before the ranks come together.
fn check_environment() -> Result<(), EnvError> {
    env::byte_count(env::STAGING)?;
    env::byte_count(env::CHUNK)?;
    env::value::<Mapped>(env::MAPPED)?;
    env::seconds(env::TIMEOUT)?;
    Ok(())
}

/// Bytes per second: `50GB`, `50GB/s`.
fn read_rate(text: &str) -> Result<f64, RefitError> {
    let bytes = bytes::parse(text.strip_suffix("/s").unwrap_or(text)).map_err(RefitError::Rate)?;
    if bytes == 0 {
        let allowed = "a NIC moves more than nothing; give bytes per second such as 50GB".into();
        return Err(RefitError::Option { option: "nic-rate", value: text.into(), allowed });
    }
    Ok(bytes as f64)
}

/// `0-3,8` as ranks, in the order written.
fn read_ranks(side: &'static str, text: &str) -> Result<Vec<Rank>, RefitError> {
    let mut ranks = Vec::new();
    for item in text.split(',').map(str::trim) {
        let bad = || RefitError::RankList { side, text: text.to_string(), item: item.to_string() };
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let (first, last): (u32, u32) = (first.parse().map_err(|_| bad())?, last.parse().map_err(|_| bad())?);
        // Lists longer than any job are refused before they are made.
        if last < first || last - first > 1 << 24 {
            return Err(bad());
        }
        ranks.extend((first..=last).map(Rank));
    }
    Ok(ranks)
}

/// The job's roles as crossmesh run states them.
fn roles() -> Vec<(String, u32)> {
    let text = env::text(env::ROLES).unwrap_or_default();
    text.split(',')
        .filter_map(|role| {
            let (name, count) = role.rsplit_once('=')?;
            Some((name.to_string(), count.parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(src: &str, dst: &str, src_ranks: Option<&str>, dst_ranks: Option<&str>) -> Result<Request, RefitError> {
        Ok(Request {
            src: SideRequest::parse("src", src, src_ranks)?,
            dst: SideRequest::parse("dst", dst, dst_ranks)?,
            cast: None,
            route: RouteOptions::default(),
            memory: MemoryChoice::Shared,
            nic_rate: None,
            roles: Vec::new(),
        })
    }

    fn numbers(ranks: &[Rank]) -> Vec<u32> {
        ranks.iter().map(|rank| rank.0).collect()
    }

    #[test]
    fn sides_follow_each_other_unless_listed() {
        let (src, dst) = request("tp=4", "tp=2,dp=2", None, None).unwrap().ranks(9).unwrap();
        assert_eq!((numbers(&src), numbers(&dst)), (vec![0, 1, 2, 3], vec![4, 5, 6, 7]));
        let listed = request("tp=3", "tp=2", Some("5-6,1"), Some("1, 0")).unwrap();
        let (src, dst) = listed.ranks(7).unwrap();
        assert_eq!((numbers(&src), numbers(&dst)), (vec![5, 6, 1], vec![1, 0]));
        assert!(matches!(listed.ranks(6), Err(RefitError::RankOutside { side: "src", rank: Rank(6), last: 5 })));
        let few = request("tp=4", "tp=2", None, None).unwrap().ranks(5);
        assert!(matches!(few, Err(RefitError::TooFewRanks { ranks: 5, .. })));
    }

    #[test]
    fn an_unlisted_side_takes_what_the_other_leaves() {
        let (src, dst) = request("tp=2", "tp=2", Some("3,1"), None).unwrap().ranks(4).unwrap();
        assert_eq!((numbers(&src), numbers(&dst)), (vec![3, 1], vec![0, 2]));
        let (src, dst) = request("tp=2", "tp=2", None, Some("0-1")).unwrap().ranks(4).unwrap();
        assert_eq!((numbers(&src), numbers(&dst)), (vec![2, 3], vec![0, 1]));
        let few = request("tp=2", "tp=2", Some("0-1"), None).unwrap().ranks(3);
        assert!(matches!(few, Err(RefitError::TooFewRanks { ranks: 3, .. })));
        let absurd = request("tp=4000000000", "tp=4000000000", None, None).unwrap().ranks(8);
        assert!(matches!(absurd, Err(RefitError::TooFewRanks { .. })));
    }

    #[test]
    fn sides_start_where_their_blocks_do() {
        let starts = |src, dst| numbers(&request("tp=2", "tp=3", src, dst).unwrap().side_starts());
        assert_eq!(starts(None, None), [0, 2]);
        assert_eq!(starts(Some("4,3"), Some("0-2")), [3, 0]);
        assert_eq!(starts(Some("0,2"), Some("1,3,5")), [0u32; 0]);
        assert_eq!(starts(Some("0-1"), Some("1-3")), [0u32; 0]);
    }

    #[test]
    fn roles_are_the_sides() {
        let mut request = request("tp=2", "tp=1", None, None).unwrap();
        request.roles = vec![("trainer".into(), 2), ("generator".into(), 1)];
        assert_eq!(numbers(&request.ranks(3).unwrap().1), [2]);
        request.roles[0].1 = 3;
        assert!(matches!(request.ranks(4), Err(RefitError::RoleSize { given: 3, needed: 2, .. })));
    }

    #[test]
    fn bad_lists() {
        for list in ["", "a", "3-1", "1,,2", "0-99999999999"] {
            assert!(read_ranks("src", list).is_err(), "{list:?}");
        }
        assert!(matches!(request("tp=2", "tp=1", Some("0"), None), Err(RefitError::RankListLength { .. })));
        assert!(matches!(
            request("tp=2", "tp=1", Some("1,1"), None),
            Err(RefitError::RankRepeated { side: "src", rank: Rank(1), .. })
        ));
        assert!(read_rate("0GB").is_err() && read_rate("fast").is_err());
        assert_eq!(read_rate("50GB/s").unwrap(), 5e10);
    }
}
