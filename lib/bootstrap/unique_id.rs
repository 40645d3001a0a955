//! The text that lets processes find each other without MPI. In: rendezvous addresses and a job key. Out: one line of
//! text, and back. Guarantee: `Debug` and error messages never show the key; `Display` does, it is what is passed on.

use super::error::BootstrapError;
use super::key::JobKey;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

const PREFIX: &str = "crossmesh-";

/// Where a rendezvous is, and the key that proves who may join. Its text is a secret: pass it by a private file, a
/// pipe or the environment, never as an argument.
#[derive(Clone)]
pub struct UniqueId {
    addresses: Vec<SocketAddr>,
    key: JobKey,
}

impl UniqueId {
    pub(super) fn new(addresses: Vec<SocketAddr>, key: JobKey) -> Self {
        Self { addresses, key }
    }

    /// Addresses of the rendezvous, best first.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    pub(super) fn key(&self) -> &JobKey {
        &self.key
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("UniqueId").field("addresses", &self.addresses).field("key", &self.key).finish()
    }
}

impl fmt::Display for UniqueId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{PREFIX}{}@", self.key.to_hex())?;
        for (index, address) in self.addresses.iter().enumerate() {
            write!(formatter, "{}{address}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for UniqueId {
    type Err = BootstrapError;

    fn from_str(text: &str) -> Result<Self, BootstrapError> {
        let wrong = |reason| BootstrapError::UniqueId { reason };
        let rest = text.trim().strip_prefix(PREFIX).ok_or_else(|| wrong("it does not begin with crossmesh-"))?;
        let (key, addresses) = rest.split_once('@').ok_or_else(|| wrong("it has no @ between key and addresses"))?;
        let key = JobKey::from_hex(key).ok_or_else(|| wrong("its key is not 64 hexadecimal digits"))?;
        let addresses = addresses
            .split(',')
            .map(str::parse)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| wrong("its addresses are not ADDRESS:PORT, separated by commas"))?;
        Ok(Self { addresses, key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_hidden_in_debug() {
        let key = JobKey::generate().unwrap();
        let addresses: Vec<SocketAddr> = vec!["10.0.0.1:4000".parse().unwrap(), "[2001:db8::1]:5".parse().unwrap()];
        let id = UniqueId::new(addresses.clone(), key.clone());
        let read: UniqueId = format!(" {id}\n").parse().unwrap();
        assert_eq!(read.addresses(), addresses);
        assert_eq!(read.key.to_hex(), key.to_hex());
        let shown = format!("{id:?}");
        assert!(shown.contains("10.0.0.1:4000") && !shown.contains(&key.to_hex()[..8]), "{shown}");
    }

    #[test]
    fn wrong_texts_are_refused_without_showing_them() {
        let key = JobKey::generate().unwrap().to_hex();
        for text in
            ["", "crossmesh-", &format!("crossmesh-{key}"), &format!("crossmesh-{key}@"), &format!("{key}@1.2.3.4:5")]
        {
            let error = UniqueId::from_str(text).unwrap_err().to_string();
            assert!(!error.contains(&key[..8]), "{error}");
        }
        assert!(UniqueId::from_str(&format!("crossmesh-{}@1.2.3.4:5", &key[1..])).is_err());
        assert!(UniqueId::from_str(&format!("crossmesh-{key}@1.2.3.4")).is_err());
    }
}
