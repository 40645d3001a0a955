//! Specs. In: texts. Out: nothing. Guarantee: every text is a spec that reads back, or an error that says why.

use super::*;
use proptest::prelude::*;

fn ranks(count: u32) -> Vec<Rank> {
    (0..count).map(Rank).collect()
}

fn mesh(spec: &ParallelSpec, view: WeightView) -> Mesh {
    spec.mesh(view, &ranks(spec.rank_count())).unwrap()
}

#[test]
fn the_first_axis_varies_fastest() {
    let spec = ParallelSpec::parse(" tp=2, dp = 3 ").unwrap();
    assert_eq!(spec.to_string(), "tp=2,dp=3");
    assert_eq!(spec.rank_count(), 6);
    let whole = mesh(&spec, WeightView::Dense);
    assert_eq!(whole.shape(), [3, 2]);
    assert_eq!(whole.coordinates(3), [1, 1]);
    assert_eq!((spec.size(ParallelAxis::Tensor), spec.size(ParallelAxis::Expert)), (2, 1));
    let shape = |text: &str| mesh(&ParallelSpec::parse(text).unwrap(), WeightView::Dense).shape().to_vec();
    assert_eq!(shape("dp=3,tp=2"), [2, 3]);
    assert_eq!(shape("tp=2,ep=4,dp=1"), [1, 4, 2]);
    assert_eq!(shape("tp=2,cp=3,ep=2,fsdp=5,pp=4"), [4, 5, 2, 3, 2]);
}

#[test]
fn megatron_sees_the_same_ranks_twice() {
    let spec = ParallelSpec::parse("tp=2,cp=1,dp=8,etp=1,ep=4,edp=4,pp=3").unwrap();
    assert_eq!((spec.convention(), spec.rank_count()), (ExpertConvention::TwoViews, 48));
    assert_eq!(mesh(&spec, WeightView::Dense).shape(), [3, 8, 1, 2]);
    assert_eq!(mesh(&spec, WeightView::Expert).shape(), [3, 4, 4, 1]);
    let named = ParallelSpec::parse("megatron:dp=8,ep=8").unwrap();
    assert_eq!((named.rank_count(), named.to_string()), (8, "megatron:dp=8,ep=8".to_string()));
    let multiplied = ParallelSpec::parse("m2n: dp=8,ep=8").unwrap();
    assert_eq!((multiplied.rank_count(), multiplied.to_string()), (64, "dp=8,ep=8".to_string()));
    // Stages of the same size need not stand at the same place of the text.
    let inner = ParallelSpec::parse("tp=4,pp=2,dp=2,etp=1,ep=4,edp=2").unwrap_err();
    assert!(matches!(inner, ParallelError::Stages { dense: 4, expert: 1, .. }), "{inner}");
    let inner = ParallelSpec::parse("tp=4,etp=1,ep=4,pp=2,dp=2,edp=2").unwrap();
    assert_eq!(mesh(&inner, WeightView::Expert).shape(), [2, 2, 4, 1]);
}

#[test]
fn contradictory_views_say_both_products() {
    let error = ParallelSpec::parse("tp=2,dp=4,etp=1,ep=16,pp=2").unwrap_err();
    let text = error.to_string();
    for part in ["pp=2 x dp=4 x tp=2", "is 16 ranks", "pp=2 x ep=16 x etp=1", "is 32"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let error = ParallelSpec::parse("m2n:tp=2,etp=2").unwrap_err();
    assert!(matches!(error, ParallelError::ExpertAxis { axis: ParallelAxis::ExpertTensor, .. }), "{error}");
    assert!(matches!(ParallelSpec::parse("torch:tp=2").unwrap_err(), ParallelError::Convention { .. }));
}

#[test]
fn stages_may_be_listed() {
    let spec = ParallelSpec::parse("tp=2,pp=8+0 + 7").unwrap();
    assert_eq!((spec.size(ParallelAxis::Pipeline), spec.stage_layers()), (3, Some(&[8, 0, 7][..])));
    assert_eq!(spec.to_string(), "tp=2,pp=8+0+7");
    for text in ["pp=8+", "pp=+8", "pp=8++7", "pp=8+x"] {
        assert!(matches!(ParallelSpec::parse(text), Err(ParallelError::StageLayers { .. })), "{text}");
    }
    assert!(matches!(ParallelSpec::parse("tp=2+2"), Err(ParallelError::Size { .. })));
}

#[test]
fn bad_texts() {
    let fail = |text: &str| ParallelSpec::parse(text).unwrap_err();
    assert_eq!(fail(" "), ParallelError::Empty);
    assert_eq!(fail("m2n:"), ParallelError::Empty);
    for text in ["tp", "tp=2,", ",", "=3", "tp=2;dp=2=1,x"] {
        let error = fail(text);
        assert!(matches!(error, ParallelError::Unreadable { .. } | ParallelError::Size { .. }), "{text}: {error}");
    }
    let unknown = fail("TP=2").to_string();
    assert!(unknown.contains("\"TP\"") && unknown.contains("tp, cp, ep"), "{unknown}");
    for size in ["0", "", "-1", "+2", "2.0", "4294967296", "two", "1_000"] {
        assert!(matches!(fail(&format!("tp={size}")), ParallelError::Size { .. }), "{size}");
    }
    assert!(matches!(fail("tp=2,dp=2,tp=2"), ParallelError::Repeated { axis: ParallelAxis::Tensor, .. }));
    assert!(matches!(fail("tp=65536,dp=65536"), ParallelError::Overflow { .. }));
    let twice = [(ParallelAxis::Data, 2), (ParallelAxis::Data, 2)];
    let new = |sizes: &[(ParallelAxis, u32)]| ParallelSpec::new(ExpertConvention::Multiplied, sizes);
    assert!(matches!(new(&twice), Err(ParallelError::Repeated { .. })));
    assert!(matches!(new(&[(ParallelAxis::Data, 0)]), Err(ParallelError::Size { .. })));
    assert_eq!(new(&[]).unwrap().rank_count(), 1);
}

#[test]
fn rank_count_error_says_both() {
    let spec = ParallelSpec::parse("tp=2,dp=2").unwrap();
    let error = spec.mesh(WeightView::Dense, &ranks(3)).unwrap_err().to_string();
    assert!(error.contains("needs 4 ranks and 3 are given"), "{error}");
    let error = spec.mesh(WeightView::Dense, &[Rank(0), Rank(1), Rank(1), Rank(2)]).unwrap_err();
    assert!(matches!(error, ParallelError::Mesh { .. }));
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "(m2n:|megatron:)?[tepcdfs=,0-9+ ]{0,24}") {
        if let Ok(spec) = ParallelSpec::parse(&text) {
            prop_assert_eq!(ParallelSpec::parse(&spec.to_string()), Ok(spec));
        }
    }

    #[test]
    fn items_in_any_order_read_back(
        items in prop::collection::vec((0usize..9, 1u32..5), 1..9),
        named in prop::option::of(prop::sample::select(vec!["m2n", "megatron"])),
    ) {
        let items: Vec<String> =
            items.iter().map(|&(axis, size)| format!("{}={size}", ParallelAxis::ALL[axis])).collect();
        let text = format!("{}{}", named.map(|name| format!("{name}:")).unwrap_or_default(), items.join(","));
        if let Ok(spec) = ParallelSpec::parse(&text) {
            prop_assert_eq!(ParallelSpec::parse(&spec.to_string()), Ok(spec.clone()));
            for view in [WeightView::Dense, WeightView::Expert] {
                prop_assert_eq!(mesh(&spec, view).slots(), spec.rank_count() as usize);
            }
        }
    }
}
