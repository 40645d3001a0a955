//! The fused call, against its three steps on the host. In: a channel of each rank. Out: what is wrong.

use super::trial::Random;
use crate::access::{put, take};
use crate::moving::deadline;
use crossmesh::collective::{Algorithm, ReduceOperation, reduce};
use crossmesh::comm::{
    Buffer, Channel, ChannelOptions, Device, DeviceMemory, NormOperands, NormShape, Operand, Stream,
};
use crossmesh::layout::Dtype;
use half::bf16;
use std::error::Error;
use std::sync::Arc;

const EPSILON: f32 = 1e-5;

fn values(seed: u64, count: usize) -> Vec<u8> {
    let mut random = Random(seed);
    (0..count).flat_map(|_| bf16::from_f32(random.below(2001) as f32 / 250.0 - 4.0).to_le_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(2).map(|pair| bf16::from_le_bytes([pair[0], pair[1]]).to_f32()).collect()
}

/// Rows of `hidden` bfloat16 on `ranks` ranks of this process.
pub(crate) fn wrong(
    ranks: u32,
    (tokens, hidden): (u32, u32),
    algorithm: Algorithm,
) -> Result<Option<String>, Box<dyn Error>> {
    let count = Device::count()?;
    let devices = (0..ranks).map(|rank| Device::open(rank % count)).collect::<Result<Vec<_>, _>>()?;
    let options = ChannelOptions { algorithm: Some(algorithm), ..ChannelOptions::default() };
    let mut channels = Channel::all(&devices, &options, deadline())?;
    let elements = (tokens * hidden) as usize;
    let (rows, row) = (elements as u64 * 2, u64::from(hidden) * 2);
    let inputs: Vec<Vec<u8>> = (0..ranks).map(|rank| values(u64::from(rank) + 1, elements)).collect();
    let (residual, weight) = (values(100, elements), values(101, hidden as usize));
    let mut ends = Vec::new();
    for (device, input) in devices.iter().zip(&inputs) {
        let buffer = |bytes| Ok::<_, Box<dyn Error>>(Buffer::on_device(&Arc::new(DeviceMemory::new(device, bytes)?)));
        let buffers = [buffer(rows)?, buffer(rows)?, buffer(row)?, buffer(rows)?];
        for (buffer, bytes) in buffers.iter().zip([input, &residual, &weight]) {
            put(buffer, bytes);
        }
        let stream = Stream::new(device)?;
        // A stream's first use may wait for kernels of others on its device.
        stream.clear(&Arc::new(DeviceMemory::new(device, 16)?))?;
        stream.synchronize(deadline())?;
        ends.push((stream, buffers));
    }
    for (channel, (stream, buffers)) in channels.iter_mut().zip(&ends) {
        let [input, residual, weight, output] = buffers.each_ref().map(Operand::from);
        let operands = NormOperands { input, residual, residual_output: residual, weight, output, scale: None };
        let shape = NormShape { tokens, hidden, dtype: Dtype::BF16, epsilon: EPSILON };
        // SAFETY: streams are waited for before buffers are looked at.
        unsafe { channel.all_reduce_norm(stream, &operands, shape)? };
    }
    let mut sum = vec![0; elements * 2];
    reduce(Dtype::BF16, ReduceOperation::Sum, &inputs.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut sum)?;
    let added: Vec<bf16> =
        floats(&sum).iter().zip(floats(&residual)).map(|(one, two)| bf16::from_f32(one + two)).collect();
    for (rank, (stream, buffers)) in ends.iter().enumerate() {
        stream.synchronize(deadline())?;
        channels[rank].check()?;
        let (found, normed) = (floats(&take(&buffers[1])), floats(&take(&buffers[3])));
        if let Some(at) = (0..elements).find(|&at| found[at].to_bits() != added[at].to_f32().to_bits()) {
            return Ok(Some(format!("rank {rank}: sum {at} is {} and not {}", found[at], added[at])));
        }
        let weights = floats(&weight);
        for (number, line) in added.chunks_exact(hidden as usize).enumerate() {
            let squares: f64 = line.iter().map(|value| f64::from(value.to_f32()).powi(2)).sum();
            let factor = 1.0 / (squares / f64::from(hidden) + f64::from(EPSILON)).sqrt();
            for (column, value) in line.iter().enumerate() {
                let exact = f64::from(value.to_f32()) * factor * f64::from(weights[column]);
                let found = f64::from(normed[number * hidden as usize + column]);
                // Two units in the last place of bfloat16.
                if (found - exact).abs() > exact.abs() / 64.0 {
                    return Ok(Some(format!("rank {rank}: row {number}, column {column} is {found} and not {exact}")));
                }
            }
        }
    }
    Ok(None)
}
