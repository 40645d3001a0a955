//! The user's tensors. In: buffers and views per tensor and side. Out: where every local element lies. Guarantee:
//! checked against layout and buffer before anything is exchanged.

use super::ExecuteError;
use super::overlap::{Footprint, first_shared};
use crate::base::Rank;
use crate::layout::positions::{Positions, own_boxes, stored_boxes};
use crate::layout::{AxisMap, Interval, Layout, Location, View};
use crate::memory::Buffer;
use crate::plan::Manifest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// Side of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// Where tensors are.
    Source,
    /// Where they are wanted.
    Destination,
}

impl fmt::Display for Side {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Side::Source => "source",
            Side::Destination => "destination",
        })
    }
}

/// A rank's local tensor.
#[derive(Debug, Clone)]
pub struct TensorBuffer {
    /// Memory.
    pub buffer: Buffer,
    /// Where in it.
    pub view: View,
}

/// This rank's local tensors: one entry per tensor of the manifest and side; a rank gives a buffer exactly for
/// the sides whose mesh it is in and whose local tensor is not empty.
#[derive(Debug, Clone, Default)]
pub struct Buffers {
    source: Vec<Option<TensorBuffer>>,
    destination: Vec<Option<TensorBuffer>>,
}

impl Buffers {
    /// No buffers yet.
    pub fn new(manifest: &Manifest) -> Self {
        let none = vec![None; manifest.tensors().len()];
        Self { source: none.clone(), destination: none }
    }

    /// Gives tensor number `tensor` its local memory on `side`; a number outside the manifest is ignored here and
    /// its tensor reported as missing at init.
    pub fn set(&mut self, side: Side, tensor: usize, buffer: Buffer, view: View) {
        if let Some(entry) = self.side_mut(side).get_mut(tensor) {
            *entry = Some(TensorBuffer { buffer, view });
        }
    }

    /// The local tensor.
    pub fn get(&self, side: Side, tensor: usize) -> Option<&TensorBuffer> {
        self.side(side).get(tensor).and_then(Option::as_ref)
    }

    fn side(&self, side: Side) -> &[Option<TensorBuffer>] {
        match side {
            Side::Source => &self.source,
            Side::Destination => &self.destination,
        }
    }

    fn side_mut(&mut self, side: Side) -> &mut Vec<Option<TensorBuffer>> {
        match side {
            Side::Source => &mut self.source,
            Side::Destination => &mut self.destination,
        }
    }
}

/// Where a local tensor lies.
#[derive(Debug, Clone)]
pub(super) struct LocalTensor {
    pub(super) buffer: Buffer,
    /// Byte offset of the first element in the buffer.
    pub(super) offset: u64,
    /// Byte strides.
    pub(super) strides: Vec<u64>,
}

/// Where a rank's tensors are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) enum MemoryOf {
    /// It has none.
    #[default]
    None,
    /// Host.
    Host,
    /// A GPU, by its number among those that the rank sees.
    Device(u32),
    /// Host and GPU, or several GPUs.
    Mixed,
}

/// How peers can map a rank's device memory of one side, all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mappable {
    /// On its host, by the driver's handles and descriptors.
    pub(super) local: bool,
    /// By fabric handles.
    pub(super) fabric: bool,
}

impl Default for Mappable {
    /// Of no memory at all.
    fn default() -> Self {
        Self { local: true, fabric: true }
    }
}

/// All local tensors of this rank, checked.
#[derive(Debug, Clone, Default)]
pub(super) struct LocalTensors {
    pub(super) source: Vec<Option<LocalTensor>>,
    pub(super) destination: Vec<Option<LocalTensor>>,
    /// How peers can map the device memory of sources, and of destinations.
    pub(super) mappable: [Mappable; 2],
    /// Identities of the devices that they are on.
    pub(super) identities: Vec<[u8; 16]>,
    /// Axis maps per tensor and side, shared where layouts are.
    source_maps: Vec<Option<Arc<Vec<AxisMap>>>>,
    destination_maps: Vec<Option<Arc<Vec<AxisMap>>>>,
}

impl LocalTensors {
    pub(super) fn side(&self, side: Side) -> &[Option<LocalTensor>] {
        match side {
            Side::Source => &self.source,
            Side::Destination => &self.destination,
        }
    }

    /// Axis maps of a tensor.
    pub(super) fn maps(&self, side: Side, tensor: u32) -> Option<&[AxisMap]> {
        let maps = match side {
            Side::Source => &self.source_maps,
            Side::Destination => &self.destination_maps,
        };
        maps.get(tensor as usize)?.as_ref().map(|maps| maps.as_slice())
    }

    /// Where these tensors are, all together.
    pub(super) fn memory(&self) -> MemoryOf {
        let mut devices = self.source.iter().chain(&self.destination).flatten().map(|tensor| tensor.buffer.device());
        let Some(first) = devices.next() else { return MemoryOf::None };
        match (first, devices.all(|device| device == first)) {
            (_, false) => MemoryOf::Mixed,
            (None, true) => MemoryOf::Host,
            (Some(device), true) => MemoryOf::Device(device),
        }
    }

    /// Numbers of the devices that these tensors are on, ascending.
    pub(super) fn devices(&self) -> Vec<u32> {
        let tensors = self.source.iter().chain(&self.destination).flatten();
        tensors.filter_map(|tensor| tensor.buffer.device()).collect::<BTreeSet<u32>>().into_iter().collect()
    }

    /// Whether any of `tensors` is on a device.
    pub(super) fn touch_device(&self, side: Side, tensors: &[u32]) -> bool {
        let buffer = |&tensor: &u32| self.side(side)[tensor as usize].as_ref().map(|tensor| &tensor.buffer);
        tensors.iter().filter_map(buffer).any(|buffer| buffer.device().is_some())
    }

    /// Whether peers can map all of these tensors.
    pub(super) fn all_shared(&self) -> bool {
        self.source.iter().chain(&self.destination).flatten().all(|tensor| tensor.buffer.is_shared())
    }
}

/// First place of a box in the local tensor, per dimension.
pub(super) fn locate(maps: &[AxisMap], intervals: &[Interval]) -> Option<Vec<Location>> {
    maps.iter().zip(intervals).map(|(map, &interval)| map.locate(interval)).collect()
}

/// All places of a box in the local tensor: every choice of a place per dimension, the first of [`locate`].
pub(super) fn places(maps: &[AxisMap], intervals: &[Interval]) -> Vec<Vec<Location>> {
    let mut places = vec![Vec::with_capacity(maps.len())];
    for (map, &interval) in maps.iter().zip(intervals) {
        places = places
            .iter()
            .flat_map(|outer: &Vec<Location>| {
                map.places(interval).map(move |place| {
                    let mut chosen = outer.clone();
                    chosen.push(place);
                    chosen
                })
            })
            .collect();
    }
    places
}

/// Axis maps of `rank` for every layout of one side, computed once per distinct layout.
fn rank_maps<'a>(layouts: impl Iterator<Item = &'a Arc<Layout>>, rank: Rank) -> Vec<Option<Arc<Vec<AxisMap>>>> {
    let mut known: std::collections::HashMap<*const Layout, Option<Arc<Vec<AxisMap>>>> = Default::default();
    layouts
        .map(|layout| known.entry(Arc::as_ptr(layout)).or_insert_with(|| layout.axis_maps(rank).map(Arc::new)).clone())
        .collect()
}

/// Checks the buffers of `rank` against the manifest.
pub(super) fn check(manifest: &Manifest, buffers: &Buffers, rank: Rank) -> Result<LocalTensors, ExecuteError> {
    let tensors = manifest.tensors();
    let mut local = LocalTensors {
        source: Vec::with_capacity(tensors.len()),
        destination: Vec::with_capacity(tensors.len()),
        mappable: [Mappable::default(); 2],
        identities: Vec::new(),
        source_maps: rank_maps(tensors.iter().map(|tensor| &tensor.source), rank),
        destination_maps: rank_maps(tensors.iter().map(|tensor| &tensor.destination), rank),
    };
    for (index, tensor) in tensors.iter().enumerate() {
        let place = |side: Side, layout: &Layout, maps: &Option<Arc<Vec<AxisMap>>>| {
            place(&tensor.name, side, layout, maps.as_deref(), buffers.get(side, index))
        };
        local.source.push(place(Side::Source, &tensor.source, &local.source_maps[index])?);
        local.destination.push(place(Side::Destination, &tensor.destination, &local.destination_maps[index])?);
    }
    check_overlaps(manifest, &local)?;
    Ok(local)
}

fn place(
    name: &str,
    side: Side,
    layout: &Layout,
    maps: Option<&Vec<AxisMap>>,
    given: Option<&TensorBuffer>,
) -> Result<Option<LocalTensor>, ExecuteError> {
    let tensor = name.to_string();
    let shape: Option<Vec<u64>> = maps.map(|maps| maps.iter().map(AxisMap::extent).collect());
    match (shape, given) {
        (None, None) => Ok(None),
        (None, Some(_)) => Err(ExecuteError::UnexpectedBuffer { tensor, side }),
        (Some(shape), None) if shape.contains(&0) => Ok(None),
        // Nothing but holes.
        (Some(_), None) if maps.is_some_and(|maps| own_boxes(maps).is_empty()) => Ok(None),
        (Some(shape), None) => Err(ExecuteError::NoBuffer { tensor, side, shape }),
        (Some(shape), Some(given)) => {
            let destination = side == Side::Destination;
            let strides = given
                .view
                .byte_strides(&shape, layout.dtype().bytes(), given.buffer.bytes(), destination)
                .map_err(|source| ExecuteError::View { tensor, side, source })?;
            Ok(Some(LocalTensor { buffer: given.buffer.clone(), offset: given.view.offset, strides }))
        }
    }
}

/// A destination must not share bytes with any other tensor of the transfer.
fn check_overlaps(manifest: &Manifest, local: &LocalTensors) -> Result<(), ExecuteError> {
    let mut places = Vec::new();
    let mut footprints = Vec::new();
    for side in [Side::Source, Side::Destination] {
        let maps = match side {
            Side::Source => &local.source_maps,
            Side::Destination => &local.destination_maps,
        };
        for (index, (tensor, maps)) in local.side(side).iter().zip(maps).enumerate() {
            let (Some(tensor), Some(maps)) = (tensor, maps) else { continue };
            let written = side == Side::Destination;
            // A tensor of parts is several footprints, whose gaps may be other tensors.
            let boxes = if written { own_boxes(maps) } else { stored_boxes(maps) };
            let spec = &manifest.tensors()[index];
            let layout = if written { &spec.destination } else { &spec.source };
            let element = layout.dtype().bytes();
            footprints.extend(boxes.iter().map(|positions| footprint(tensor, positions, element, written)));
            places.resize(footprints.len(), (spec.name.as_str(), side));
        }
    }
    match first_shared(&footprints).map(|(first, second)| (places[first], places[second])) {
        Some(((first, first_side), (second, second_side))) => {
            let (first, second) = (first.to_string(), second.to_string());
            Err(ExecuteError::Overlap { first, first_side, second, second_side })
        }
        None => Ok(()),
    }
}

/// The bytes of a box of a local tensor.
fn footprint(tensor: &LocalTensor, positions: &[Positions], element: u64, written: bool) -> Footprint {
    let along = positions.iter().zip(&tensor.strides);
    let first: u64 = along.clone().map(|(at, stride)| at.first * stride).sum();
    let start = tensor.buffer.as_ptr() as u64 + tensor.offset + first;
    let dimensions = along.map(|(at, stride)| (at.step * stride, at.count)).chain([(1, element)]).collect();
    Footprint { start, dimensions, written }
}
