//! Storage that departs from plain shards. In: a tensor's `[[store]]` and `[[scales]]` rules. Out: changes of its layout.
//! Guarantee: an element that no destination wants is in no layout; scales lie where an index of their block does.

use super::arrange::{Arrangement, Nesting};
use super::side::{Part, SideLayouts};
use super::{ParallelAxis, RulesError, StorageError};
use crate::layout::element::encode;
use crate::layout::{AxisMap, ExpertError, Interval, Layout, Mesh, Part as MapPart, Placement};

impl SideLayouts<'_> {
    /// Makes `tp` deal out tensor number `index` by whole heads.
    pub(super) fn deal_out_heads(
        &self,
        index: usize,
        tensor_axis: Option<usize>,
        mesh: &Mesh,
        made: &mut Arrangement,
    ) -> Result<(), RulesError> {
        let tensor = &self.ruled.model().tensors()[index];
        let Some(axis) = tensor_axis else { return Ok(()) };
        let ranks = mesh.shape()[axis];
        let Some((rule, heads)) = self.ruled.heads(index, ranks) else { return Ok(()) };
        let failed = |source| RulesError::Storage { rule: rule.to_string(), source };
        let Some(dim) = made.placements[axis].dim() else {
            return Err(failed(StorageError::HeadsUncut { tensor: tensor.name.clone() }));
        };
        let maps = heads.axis(&tensor.name, tensor.shape[dim], self.ruled.known(), ranks);
        if let Some(maps) = maps.map_err(failed)? {
            made.set(tensor_axis, Nesting::Tensor, Placement::parts(dim, maps));
        }
        Ok(())
    }

    /// Leaves out what is not wanted of tensor number `index`, and pads what is.
    pub(super) fn arrange_extents(&self, index: usize, mesh: &Mesh, made: &mut Arrangement) -> Result<(), RulesError> {
        let Some(rule) = self.ruled.stored(index) else { return Ok(()) };
        let failed = |source| RulesError::Storage { rule: rule.origin.clone(), source };
        let leading = usize::from(self.ruled.is_leading(index));
        let shape = &self.ruled.model().tensors()[index].shape;
        let mut dims: Vec<usize> = rule.pad.iter().map(|pad| pad.dim).chain(rule.crop.map(|(dim, _)| dim)).collect();
        dims.dedup();
        for dim in dims {
            let extent = match rule.crop {
                Some((cropped, to)) if cropped == dim => to,
                _ => shape[dim + leading],
            };
            let cutting = made.placements.iter().zip(mesh.shape());
            let ranks = cutting.filter(|(placement, _)| placement.dim() == Some(dim + leading));
            let ranks = ranks.map(|(_, &length)| u64::from(length)).product();
            let padded = match rule.pad.filter(|pad| pad.dim == dim) {
                Some(pad) => pad.extent(extent, ranks).map_err(failed)?,
                None => extent,
            };
            let parts = [MapPart::Global(Interval { lo: 0, hi: extent }), MapPart::Padding(padded - extent)];
            // Both counts together are `padded`.
            made.arrange(dim + leading, AxisMap::of_parts(parts).unwrap_or_default());
        }
        Ok(())
    }

    /// States what the padding of tensor number `index`, stored as number `like` is, holds.
    pub(super) fn fill_padding(&self, index: usize, like: usize, layout: Layout) -> Result<Layout, RulesError> {
        let tensor = &self.ruled.model().tensors()[index];
        let Some((rule, pad)) = self.ruled.stored(like).and_then(|rule| Some((rule, rule.pad?))) else {
            return Ok(layout);
        };
        let Some(element) = encode(tensor.dtype, pad.value()) else {
            let (value, dtype) = (pad.value().to_string(), tensor.dtype);
            let source = StorageError::PadValue { tensor: tensor.name.clone(), value, dtype };
            return Err(RulesError::Storage { rule: rule.origin.clone(), source });
        };
        let layout = layout.with_padding(&element[..tensor.dtype.bytes() as usize]);
        layout.map_err(|source| RulesError::Layout { tensor: tensor.name.clone(), source })
    }

    /// Scales lie as the blocks of their weight do.
    pub(super) fn scales(&mut self, index: usize, weight: usize, rule: u32, part: Part) -> Result<Layout, RulesError> {
        let ruled = self.ruled;
        let (scales, held) = (&ruled.model().tensors()[index], &ruled.model().tensors()[weight]);
        let rule = ruled.scale_rule(rule);
        let failed = |source| RulesError::Storage { rule: rule.origin.clone(), source };
        let within = |index: usize| {
            let (number, part) = ruled.tensor(index).fused?;
            Some((ruled.fused()[number as usize].stacked, ruled.is_fused(number), part))
        };
        if within(index) != within(weight) || ruled.is_leading(index) != ruled.is_leading(weight) {
            let (scales, weight) = (scales.name.clone(), held.name.clone());
            return Err(failed(StorageError::ScalesApart { scales, weight }));
        }
        let leading = usize::from(ruled.is_leading(weight));
        // The shapes agreed when the rule was looked up.
        let blocks = rule.blocks(held.shape.len() - leading).unwrap_or_default();
        let blocks = [vec![1; leading], blocks].concat();
        if within(weight).is_some_and(|(_, is_fused, _)| is_fused) {
            return self.fused_scales(index, weight, &blocks, part, &rule.origin);
        }
        let layout = self.stored(index, weight, part)?.block_scales(&blocks, scales.dtype);
        let layout = layout.map_err(|source| RulesError::Layout { tensor: scales.name.clone(), source })?;
        self.fill_padding(index, weight, layout)
    }

    /// Scales of weights that are parts of one tensor: tensor parallelism deals out the blocks of what it deals out of
    /// the weights; every other dimension may be cut by one axis.
    fn fused_scales(
        &mut self,
        index: usize,
        weight: usize,
        blocks: &[u64],
        part: Part,
        rule: &str,
    ) -> Result<Layout, RulesError> {
        let ruled = self.ruled;
        let (scales, held) = (&ruled.model().tensors()[index], &ruled.model().tensors()[weight]);
        let failed = |source| RulesError::Storage { rule: rule.to_string(), source };
        let Some((number, place)) = ruled.tensor(weight).fused else { return self.stored(index, index, part) };
        let dim = ruled.fused()[number as usize].dim;
        let mut made = self.cut(index, &held.shape)?;
        let (axes, mesh) = self.axes_and_mesh(index, part)?;
        let tensor_axis = axes.iter().position(|&(axis, _)| axis.in_rules() == ParallelAxis::Tensor);
        if let Some((cut, spec)) = cut_again(&made, &axes, &mesh, (dim, tensor_axis)) {
            return Err(failed(StorageError::ScalesCut { scales: scales.name.clone(), dim: cut, spec }));
        }
        for (placement, &ranks) in made.placements.iter_mut().zip(mesh.shape()) {
            *placement = tiled(placement, &held.shape, blocks, ranks);
        }
        self.place_experts(index, &held.shape, &axes, &mut made)?;
        let ranks = tensor_axis.map_or(1, |axis| mesh.shape()[axis]);
        let tiles = ruled.fused_axis(number, ranks)?.blocks(blocks[dim]);
        let tiles =
            tiles.map_err(|source| failed(StorageError::FusedScales { scales: scales.name.clone(), source }))?;
        made.set(tensor_axis, Nesting::Tensor, tiles.placement(place as usize, dim));
        let layout = made.place(&scales.shape, scales.dtype, mesh);
        layout.map_err(|source| RulesError::Layout { tensor: scales.name.clone(), source })
    }

    pub(super) fn expert_error(&self, index: usize, source: ExpertError) -> RulesError {
        let tensor = self.ruled.model().tensors()[index].name.clone();
        RulesError::Slots { tensor, source }
    }
}

/// A dimension that more axes cut than can cut scales: none beside tensor parallelism where they are fused, one elsewhere.
fn cut_again(
    made: &Arrangement,
    axes: &[(ParallelAxis, u32)],
    mesh: &Mesh,
    (fused, tensor_axis): (usize, Option<usize>),
) -> Option<(usize, String)> {
    let dims = made.placements.iter().filter_map(Placement::dim);
    let mut cutting = dims.map(|dim| {
        let own = |&axis: &usize| made.placements[axis].dim() == Some(dim) && mesh.shape()[axis] > 1;
        let axes = (0..axes.len()).filter(own).filter(|&axis| dim != fused || Some(axis) != tensor_axis);
        (dim, axes.collect::<Vec<_>>())
    });
    let (dim, cutting) = cutting.find(|(dim, cutting)| cutting.len() > usize::from(*dim != fused))?;
    let spec = cutting.iter().map(|&axis| format!("{}={}", axes[axis].0, axes[axis].1)).collect::<Vec<_>>();
    Some((dim, spec.join(",")))
}

/// What cuts the scales of a weight of `shape` where `placement` cuts that, alone along its dimension.
fn tiled(placement: &Placement, shape: &[u64], blocks: &[u64], ranks: u32) -> Placement {
    let Placement::Shard { dim, split } = placement else { return placement.clone() };
    if ranks == 1 {
        return Placement::Replicate;
    }
    let (whole, block) = (Interval { lo: 0, hi: shape[*dim] }, blocks[*dim]);
    let tiles = |rank| match split.part(whole, rank, ranks) {
        // No index of any block.
        part if part.is_empty() => AxisMap::default(),
        Interval { lo, hi } => AxisMap::new([Interval { lo: lo / block, hi: hi.div_ceil(block) }]),
    };
    Placement::parts(*dim, (0..ranks).map(tiles).collect::<Vec<_>>())
}

#[cfg(test)]
#[path = "side_storage_tests.rs"]
mod tests;
