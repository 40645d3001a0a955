//! Which ranks are sources and which destinations. In: arguments, roles, number of ranks. Out: two lists of ranks.
//! Guarantee: every list is as long as its spec needs and names ranks of the job.

use super::Arguments;
use super::error::RefitError;
use crossmesh::base::{Rank, bytes, env};
use crossmesh::layout::parallel::ParallelSpec;
use crossmesh::route::RouteOptions;

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
        let memory = match arguments.memory.as_str() {
            "shared" => MemoryChoice::Shared,
            "private" => MemoryChoice::Private,
            text => return Err(option("memory", text, "allowed: shared, private".into())),
        };
        if arguments.repeat == 0 {
            return Err(option("repeat", "0", "run at least once".into()));
        }
        let nic_rate = arguments.nic_rate.as_deref().map(read_rate).transpose()?;
        Ok(Self {
            src: SideRequest::parse("src", &arguments.src, arguments.src_ranks.as_deref())?,
            dst: SideRequest::parse("dst", &arguments.dst, arguments.dst_ranks.as_deref())?,
            route,
            memory,
            nic_rate,
            roles: roles(),
        })
    }

    /// Where sides begin when ranks are neither listed nor given by roles.
    pub(crate) fn side_starts(&self) -> Vec<Rank> {
        if self.src.listed.is_some() || self.dst.listed.is_some() {
            return Vec::new();
        }
        vec![Rank(0), Rank(self.src.spec.rank_count())]
    }

    /// Source and destination ranks in a job of `ranks`.
    pub(crate) fn ranks(&self, ranks: usize) -> Result<(Vec<Rank>, Vec<Rank>), RefitError> {
        let (sources, destinations) = (self.src.spec.rank_count(), self.dst.spec.rank_count());
        let given = |first: u32, count: u32| (first..first.saturating_add(count)).map(Rank).collect::<Vec<_>>();
        let (mut src, mut dst) = (given(0, sources), given(sources, destinations));
        if let [first, second, ..] = self.roles.as_slice() {
            self.src.check_role(first)?;
            self.dst.check_role(second)?;
            dst = given(first.1, destinations);
        }
        if let Some(listed) = &self.src.listed {
            src.clone_from(listed);
        }
        if let Some(listed) = &self.dst.listed {
            dst.clone_from(listed);
        }
        for (side, list) in [(&self.src, &src), (&self.dst, &dst)] {
            if let Some(&rank) = list.iter().find(|rank| rank.index() >= ranks) {
                if side.listed.is_some() {
                    let last = ranks.saturating_sub(1);
                    return Err(RefitError::RankOutside { side: side.name, rank, last });
                }
                return Err(RefitError::TooFewRanks {
                    src: self.src.text.clone(),
                    sources,
                    dst: self.dst.text.clone(),
                    destinations,
                    ranks,
                });
            }
        }
        Ok((src, dst))
    }
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
        assert!(read_rate("0GB").is_err() && read_rate("fast").is_err());
        assert_eq!(read_rate("50GB/s").unwrap(), 5e10);
    }
}
