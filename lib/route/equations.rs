//! The data-movement model of NCCL M2N, section V-C. In: payload, shards, replicas, rates. Out: its Eqs. 3 to 9 in
//! seconds. Guarantee: the equations as printed; for layouts, domains and routes that they do not describe there is
//! [`LinkBytes`](super::LinkBytes), which counts every link.

/// What the equations are about: a payload that even shards hold and want.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Equations {
    /// Bytes of the payload, each once (B).
    pub payload: f64,
    /// Source GPUs that inject (N_s).
    pub sources: f64,
    /// Distinct destination shards (K).
    pub shards: f64,
    /// Replicas of each (r_d).
    pub replicas: f64,
    /// Domains that the destination spans (d).
    pub domains: f64,
    /// Bytes per second of a GPU's network card, one way (beta_N).
    pub nic: f64,
    /// Bytes per second of a GPU's NVLink, one way (beta_V).
    pub nvlink: f64,
}

impl Equations {
    /// Replicas in each domain (rho).
    fn local_replicas(&self) -> f64 {
        self.replicas / self.domains
    }

    /// Eq. 3: one copy of the payload through the narrower of both sides.
    pub fn network(&self) -> f64 {
        let bandwidth = (self.sources * self.nic).min(self.shards * self.local_replicas() * self.nic);
        self.payload / bandwidth
    }

    /// Eq. 4: all replicas but one of each domain, over all of its NVLinks.
    pub fn nvlink(&self) -> f64 {
        (self.local_replicas() - 1.0) * self.payload / (self.shards * self.local_replicas() * self.nvlink)
    }

    /// Eq. 5: the hierarchical route.
    pub fn hierarchical(&self) -> f64 {
        self.network().max(self.nvlink())
    }

    /// Eq. 6: the flat route.
    pub fn flat(&self) -> f64 {
        let bandwidth = (self.sources * self.nic).min(self.shards * self.replicas * self.nic);
        self.replicas * self.payload / bandwidth
    }

    /// Eq. 7: how many times longer the flat route takes.
    pub fn flat_over_hierarchical(&self) -> f64 {
        self.flat() / self.hierarchical()
    }

    /// The ring all-gather of section VI-B that brings the payload to the root: what the root lacks, over its NVLink.
    pub fn gather(&self) -> f64 {
        (self.sources - 1.0) / self.sources * self.payload / self.nvlink
    }

    /// Eq. 8, with the root's card as the bottleneck of the broadcast: the gather-broadcast route.
    pub fn gather_broadcast(&self) -> f64 {
        self.gather().max(self.payload / self.nic)
    }

    /// Eq. 9: how many times longer the broadcast alone takes than the hierarchical route.
    pub fn broadcast_over_hierarchical(&self) -> f64 {
        self.payload / self.nic / self.hierarchical()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Section VI-B: 16 sources, 8 shards, r_d replicas in one domain, 7168 units of the payload per 50 of the NIC.
    fn figure_4(replicas: f64, payload: f64) -> Equations {
        Equations { payload, sources: 16.0, shards: 8.0, replicas, domains: 1.0, nic: 50e9, nvlink: 900e9 }
    }

    fn close(seconds: f64, milliseconds: f64) {
        assert!((seconds * 1e3 / milliseconds - 1.0).abs() < 2e-3, "{seconds} s is not {milliseconds} ms");
    }

    #[test]
    fn figures_of_section_vi() {
        for (replicas, nvlink, flat) in [(2.0, 0.498, 17.92), (4.0, 0.7467, 35.84), (8.0, 0.8711, 71.68)] {
            let equations = figure_4(replicas, 7168e6);
            close(equations.network(), 8.96);
            close(equations.nvlink(), nvlink);
            close(equations.hierarchical(), 8.96);
            close(equations.flat(), flat);
            assert!((equations.flat_over_hierarchical() - replicas).abs() < 1e-9);
            close(equations.gather(), 7.467);
            close(equations.gather_broadcast(), 143.36);
            assert!((equations.broadcast_over_hierarchical() - 16.0).abs() < 1e-9);
        }
    }

    /// The tensor is [256, 2048, 7168] of two bytes, which are 7168 MiB and not 7168 MB.
    #[test]
    fn the_tensor_is_larger_than_the_paper_counts() {
        let bytes = 256.0 * 2048.0 * 7168.0 * 2.0;
        close(figure_4(8.0, bytes).hierarchical(), 9.395);
        close(figure_4(8.0, bytes).gather_broadcast(), 150.32);
    }

    #[test]
    fn receivers_and_nvlink_may_be_what_is_narrow() {
        let narrow = Equations { shards: 2.0, replicas: 4.0, domains: 2.0, ..figure_4(4.0, 1e9) };
        // Two shards of two replicas in each domain: 4 NICs receive.
        close(narrow.network(), 1e3 / 200.0);
        let slow = Equations { nvlink: 10e9, ..narrow };
        close(slow.hierarchical(), 1e3 / (4.0 * 10.0));
        // Flat: 4 copies into 8 receivers.
        close(narrow.flat(), 4e3 / 400.0);
    }
}
