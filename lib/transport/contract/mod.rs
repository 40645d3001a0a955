//! What every message link keeps, tested once and run over each of them.
//!
//! Ranks are threads, each with a link, a segment server and a shared segment of its own; values encode writer and
//! index, so that a wrong place shows itself. Queues are tiny, so that every test meets back-pressure.

mod ending;
mod fabric;
mod member;
mod refusal;
mod traffic;

use fabric::{Faulty, Shm, Tcp};

macro_rules! contract {
    ($($name:ident: $fabric:ty;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn puts_of_all_sizes_arrive_before_their_signal() {
                traffic::puts_of_all_sizes_arrive_before_their_signal::<$fabric>();
            }

            #[test]
            fn interleaved_puts_land_where_they_should() {
                traffic::interleaved_puts_land_where_they_should::<$fabric>();
            }

            #[test]
            fn a_signal_is_never_ahead_of_its_put() {
                traffic::a_signal_is_never_ahead_of_its_put::<$fabric>();
            }

            #[test]
            fn completed_sources_may_be_reused() {
                traffic::completed_sources_may_be_reused::<$fabric>();
            }

            #[test]
            fn words_are_never_torn() {
                traffic::words_are_never_torn::<$fabric>();
            }

            #[test]
            fn a_full_queue_is_busy_and_recovers() {
                refusal::a_full_queue_is_busy_and_recovers::<$fabric>();
            }

            #[test]
            fn wrong_arguments_are_refused_here() {
                refusal::wrong_arguments_are_refused_here::<$fabric>();
            }

            #[test]
            fn forged_and_revoked_regions_are_refused_there() {
                refusal::forged_and_revoked_regions_are_refused_there::<$fabric>();
            }

            #[test]
            fn a_source_stays_registered_while_it_is_read() {
                refusal::a_source_stays_registered_while_it_is_read::<$fabric>();
            }

            #[test]
            fn nothing_lands_after_an_abort() {
                ending::nothing_lands_after_an_abort::<$fabric>();
            }

            #[test]
            fn a_lost_peer_is_seen() {
                ending::a_lost_peer_is_seen::<$fabric>();
            }

            #[test]
            fn closing_flushes_what_was_posted() {
                ending::closing_flushes_what_was_posted::<$fabric>();
            }

            #[test]
            fn absent_peers_are_named() {
                ending::absent_peers_are_named::<$fabric>();
            }
        }
    )*};
}

contract! {
    tcp: Tcp;
    shm: Shm;
    faulty_tcp: Faulty<Tcp>;
    faulty_shm: Faulty<Shm>;
}
