//! The option --cast. In: a word. Out: the type in which floats arrive. Guarantee: a word that is no such type is an error
//! that lists them.

use crossmesh::layout::Dtype;

/// Reads `f32`, `f16` or `bf16`; an error says what is allowed.
pub(crate) fn read(text: &str) -> Result<Dtype, String> {
    match text {
        "f32" => Ok(Dtype::F32),
        "f16" => Ok(Dtype::F16),
        "bf16" => Ok(Dtype::BF16),
        _ => Err("allowed: f32, f16, bf16".into()),
    }
}
