//! Meshes against lists. In: shapes, strides, ranks. Out: nothing. Guarantee: the short form answers as the list does.

use super::*;
use proptest::prelude::*;

#[test]
fn row_major_slots() {
    let mesh = Mesh::contiguous(vec![2, 3], Rank(4)).unwrap();
    assert_eq!(mesh.coordinates(mesh.slot(Rank(8)).unwrap()), [1, 1]);
    assert_eq!((mesh.stride(0), mesh.stride(1)), (3, 1));
    assert_eq!((mesh.slot(Rank(3)), mesh.slot(Rank(10))), (None, None));
    assert_eq!(mesh.greatest_rank(), Rank(9));
    assert_eq!(Mesh::new(vec![], vec![Rank(9)]).unwrap().coordinates(0), Vec::<u32>::new());
    let listed = Mesh::new(vec![3], vec![Rank(7), Rank(1), Rank(2)]).unwrap();
    assert_eq!((listed.greatest_rank(), listed.as_affine()), (Rank(7), None));
}

#[test]
fn bad_meshes() {
    assert!(matches!(Mesh::new(vec![2], vec![Rank(0)]), Err(LayoutError::MeshSize { .. })));
    assert!(matches!(Mesh::new(vec![2], vec![Rank(1), Rank(1)]), Err(LayoutError::MeshRepeats { rank: Rank(1) })));
    assert!(matches!(Mesh::new(vec![2, 0], vec![]), Err(LayoutError::MeshEmpty { .. })));
    assert!(matches!(Mesh::contiguous(vec![0], Rank(0)), Err(LayoutError::MeshEmpty { .. })));
    assert!(Mesh::contiguous(vec![u32::MAX, u32::MAX], Rank(0)).is_err());
    assert!(Mesh::contiguous(vec![u32::MAX, u32::MAX, u32::MAX], Rank(0)).is_err());
    assert!(matches!(Mesh::contiguous(vec![2], Rank(u32::MAX)), Err(LayoutError::MeshTooLarge { .. })));
    assert!(matches!(Mesh::affine(vec![2, 2], Rank(0), vec![1]), Err(LayoutError::MeshStrides { axes: 2, .. })));
    assert!(matches!(Mesh::affine(vec![2, 3], Rank(0), vec![2, 1]), Err(LayoutError::MeshRepeats { rank: Rank(2) })));
    let mesh = Mesh::contiguous(vec![2, 3], Rank(0)).unwrap();
    for (axis, coordinates) in [(2, vec![0]), (0, vec![2]), (1, vec![])] {
        assert!(matches!(mesh.select(axis, &coordinates), Err(LayoutError::MeshSelection { .. })));
    }
    assert!(matches!(mesh.select(1, &[1, 1]), Err(LayoutError::MeshRepeats { .. })));
}

#[test]
fn a_large_mesh_is_short() {
    let mesh = Mesh::contiguous(vec![1 << 10, 1 << 10, 1 << 11], Rank(0)).unwrap();
    assert_eq!(mesh.greatest_rank(), Rank((1 << 31) - 1));
    let stage = mesh.select(1, &[5]).unwrap();
    assert_eq!(stage.as_affine(), Some((Rank(5 << 11), &[1u32 << 21, 0, 1][..])));
    assert_eq!(stage.slot(Rank((3 << 21) + (5 << 11) + 7)), Some((3 << 11) + 7));
    assert_eq!(stage.slot(Rank((3 << 21) + (6 << 11) + 7)), None);
}

#[test]
fn few_bytes_are_not_read_as_very_many_ranks() {
    let read = |shape: &[u32], strides: &[u32]| {
        Mesh::try_from(MeshValue::Affine { shape: shape.to_vec(), first: Rank(0), strides: strides.to_vec() })
    };
    for (shape, strides) in [([1_397_800, 56], [0, 1]), ([65_536, 65_535], [65_534, 1]), ([3, 2], [2, 3])] {
        assert!(matches!(read(&shape, &strides), Err(LayoutError::MeshUnlisted { .. })), "{shape:?} {strides:?}");
    }
    let nested = Mesh::affine(vec![3, 2], Rank(0), vec![2, 1]).unwrap();
    assert_eq!(read(&[3, 2], &[2, 1]), Ok(nested));
}

#[test]
fn one_set_of_ranks_has_one_form() {
    let listed = Mesh::new(vec![2, 1, 3], [4, 6, 8, 20, 22, 24].map(Rank).to_vec()).unwrap();
    assert_eq!(listed, Mesh::affine(vec![2, 1, 3], Rank(4), vec![16, 99, 2]).unwrap());
    // Distinct ranks without the property that makes coordinates readable stay a list.
    let mesh = Mesh::affine(vec![3, 2], Rank(0), vec![2, 3]).unwrap();
    assert_eq!(mesh, Mesh::new(vec![3, 2], [0, 3, 2, 5, 4, 7].map(Rank).to_vec()).unwrap());
    assert_eq!(mesh.as_affine(), None);
    for mesh in [listed, mesh] {
        let text = serde_json::to_string(&mesh).unwrap();
        assert_eq!(serde_json::from_str::<Mesh>(&text).unwrap(), mesh);
    }
    assert!(serde_json::from_str::<Mesh>(r#"{"Affine":{"shape":[2],"first":0,"strides":[0]}}"#).is_err());
}

proptest! {
    #[test]
    fn selections_are_those_of_the_list(
        shape in prop::collection::vec(1u32..5, 1..4),
        stretch in prop::collection::vec(1u32..4, 4),
        shuffled in any::<bool>(),
        axis in 0usize..4,
        picks in prop::collection::vec(0u32..5, 1..4),
    ) {
        let axis = axis % shape.len();
        let mut strides = vec![stretch[3]; shape.len()];
        for inner in (1..shape.len()).rev() {
            strides[inner - 1] = strides[inner] * shape[inner] * stretch[inner - 1];
        }
        let mut mesh = Mesh::affine(shape.clone(), Rank(3), strides).unwrap();
        if shuffled {
            let mut ranks: Vec<Rank> = mesh.ranks().collect();
            ranks.reverse();
            mesh = Mesh::new(shape.clone(), ranks).unwrap();
        }
        for (slot, rank) in mesh.ranks().enumerate() {
            prop_assert_eq!(mesh.slot(rank), Some(slot));
        }
        let held: Vec<Rank> = mesh.ranks().collect();
        for rank in (0..=mesh.greatest_rank().0 + 2).map(Rank).filter(|rank| !held.contains(rank)) {
            prop_assert_eq!(mesh.slot(rank), None);
        }
        let mut picks: Vec<u32> = picks.into_iter().map(|pick| pick % shape[axis]).collect();
        picks.sort_unstable();
        picks.dedup();
        let part = mesh.select(axis, &picks).unwrap();
        for (slot, rank) in part.ranks().enumerate() {
            let mut coordinates = part.coordinates(slot);
            coordinates[axis] = picks[coordinates[axis] as usize];
            let whole = (0..mesh.slots()).find(|&whole| mesh.coordinates(whole) == coordinates).unwrap();
            prop_assert_eq!(rank, mesh.rank(whole));
        }
    }
}
