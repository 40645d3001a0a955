//! Which ranks are what. In: specs, lists, roles. Out: nothing. Guarantee: whatever the places of the two sides, every
//! byte arrives; how many ranks move data is as the lists say.

use crate::job::Job;
use crate::model::{self, EXAMPLE, EXAMPLE_BYTES, LLAMA};

/// Jobs of lists: ranks of the job, arguments.
const LISTED: [(usize, &str); 8] = [
    // Overlapping, the same, the same in another order.
    (6, "--src tp=4 --dst tp=4 --src-ranks 0-3 --dst-ranks 2-5"),
    (3, "--src tp=3 --dst dp=3 --src-ranks 0-2 --dst-ranks 0-2"),
    (4, "--src tp=4 --dst tp=4 --src-ranks 0-3 --dst-ranks 3,2,1,0"),
    // Destination before source, interleaved, one side only.
    (5, "--src tp=3 --dst tp=2 --src-ranks 2-4 --dst-ranks 0-1"),
    (4, "--src tp=2 --dst tp=2 --src-ranks 3,0 --dst-ranks 1,2"),
    (4, "--src tp=2 --dst dp=2 --src-ranks 2-3"),
    (4, "--src dp=2 --dst tp=2 --dst-ranks 0,3"),
    // More ranks than needed.
    (5, "--src tp=1 --dst tp=2"),
];

#[test]
fn listed_ranks_in_one_domain() {
    let (_folder, model) = model::file(LLAMA);
    for (ranks, arguments) in LISTED {
        Job::new(ranks, &model).with(arguments).verified();
    }
}

#[test]
fn listed_ranks_between_domains() {
    let (_folder, model) = model::file(LLAMA);
    for (ranks, arguments) in LISTED {
        Job::new(ranks, &model).run_with("--domains 3").with(arguments).verified();
    }
}

#[test]
fn a_side_begins_a_domain_wherever_it_is() {
    let (_folder, model) = model::file(EXAMPLE);
    // Three blocks of ranks in two domains: a cut in the middle of 5 ranks would part the destination.
    for arguments in ["--src tp=4 --dst tp=1", "--src tp=4 --dst tp=1 --src-ranks 1-4 --dst-ranks 0"] {
        let results = Job::new(5, &model).run_with("--domains 2").with(arguments).verified();
        assert_eq!(results["inter_domain_bytes"], EXAMPLE_BYTES, "{arguments}");
    }
}

#[test]
fn roles_are_the_sides() {
    let (_folder, model) = model::file(EXAMPLE);
    let job = |arguments| Job::new(5, &model).run_with("--role trainer=3 --role generator=2").with(arguments);
    let results = job("--src tp=3 --dst dp=2").verified();
    let rows = results["per_rank"].as_array().unwrap();
    assert_eq!((&rows[2]["local_read"], &rows[3]["local_read"]), (&0.into(), &EXAMPLE_BYTES.into()));
    job("--src tp=2 --dst dp=2").refused(&["role \"trainer\" has 3 ranks", "--src \"tp=2\" needs 2"]);
    job("--src tp=3 --dst tp=1").refused(&["role \"generator\" has 2 ranks", "--dst \"tp=1\" needs 1"]);
}

#[test]
fn uneven_parts() {
    let (_folder, model) = model::file(LLAMA);
    for (ranks, arguments) in
        [(5, "--src tp=3 --dst tp=2"), (7, "--src tp=2 --dst tp=5"), (7, "--src dp=2,tp=2 --dst tp=3")]
    {
        Job::new(ranks, &model).run_with("--domains 2").with(arguments).verified();
    }
}
