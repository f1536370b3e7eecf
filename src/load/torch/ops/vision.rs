//! Operations of torchvision: boxes, and images that are read at places that data names.

use super::super::call::Call;
use super::Lower;
use crate::error::Result;
use crate::ir::DType;
use crate::load::onnx::model_builder::Attribute;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "nms" => suppressed,
        "roi_align" => roi_align,
        "roi_pool" => roi_pool,
        "deform_conv2d" => deform_conv,
        _ => return None,
    })
}

/// The boxes that no better one overlaps too much, the best first.
fn suppressed(call: &mut Call<'_, '_>) -> Result<()> {
    let (boxes, scores) = (call.operand("dets", DType::F32)?, call.operand("scores", DType::F32)?);
    let limit = call.float("iou_threshold", 0.0)?;
    let count = call.op("Shape", &[&boxes], &[("end", Attribute::Int(1))]);
    let (first, two) = (call.integers(&[0]), call.integers(&[0, 1]));
    let boxes = call.plain("Unsqueeze", &[&boxes, &first]);
    let scores = call.plain("Unsqueeze", &[&scores, &two]);
    let limit = call.scalar(DType::F32, limit);
    // Rows of image, class and box.
    let rows = call.plain("NonMaxSuppression", &[&boxes, &scores, &count, &limit]);
    let column = call.scalar(DType::I64, 2.0);
    let value = call.op("Gather", &[&rows, &column], &[("axis", Attribute::Int(1))]);
    call.result(value)
}

/// Regions `[count, 5]`: the image of each, then its corners.
struct Regions {
    images: String,
    corners: String,
}

fn regions(call: &mut Call<'_, '_>) -> Result<Regions> {
    let rois = call.tensor("rois")?;
    let first = call.scalar(DType::I64, 0.0);
    let images = call.op("Gather", &[&rois, &first], &[("axis", Attribute::Int(1))]);
    let places = call.integers(&[1, 2, 3, 4]);
    let corners = call.op("Gather", &[&rois, &places], &[("axis", Attribute::Int(1))]);
    Ok(Regions { images: call.cast(&images, DType::I64), corners })
}

fn roi_align(call: &mut Call<'_, '_>) -> Result<()> {
    let samples = call.int("sampling_ratio", -1)?.max(0);
    let x = call.tensor("input")?;
    let Regions { images, corners } = regions(call)?;
    let half = if call.flag("aligned", false)? { "half_pixel" } else { "output_half_pixel" };
    let attributes = [
        ("coordinate_transformation_mode", Attribute::Text(half)),
        ("output_height", Attribute::Int(call.int("pooled_height", 1)?)),
        ("output_width", Attribute::Int(call.int("pooled_width", 1)?)),
        ("sampling_ratio", Attribute::Int(samples)),
        ("spatial_scale", Attribute::Float(call.float("spatial_scale", 1.0)?)),
    ];
    let value = call.op("RoiAlign", &[&x, &corners, &images], &attributes);
    call.result(value)
}

fn roi_pool(call: &mut Call<'_, '_>) -> Result<()> {
    if call.is_read(1) {
        return Err(call.unsupported("with the places of what is largest"));
    }
    let (x, rois) = (call.tensor("input")?, call.tensor("rois")?);
    let shape = [call.int("pooled_height", 1)?, call.int("pooled_width", 1)?];
    let scale = call.float("spatial_scale", 1.0)?;
    let attributes = [("pooled_shape", Attribute::Ints(&shape)), ("spatial_scale", Attribute::Float(scale))];
    let value = call.op("MaxRoiPool", &[&x, &rois], &attributes);
    call.result(value)
}

fn deform_conv(call: &mut Call<'_, '_>) -> Result<()> {
    let [x, weight, offset, bias] =
        [call.tensor("input")?, call.tensor("weight")?, call.tensor("offset")?, call.tensor("bias")?];
    let mask = if call.flag("use_mask", false)? { call.tensor("mask")? } else { String::new() };
    let pair = |call: &Call<'_, '_>, name: &str, default: i64| -> Result<[i64; 2]> {
        Ok([call.int(&format!("{name}_h"), default)?, call.int(&format!("{name}_w"), default)?])
    };
    let (strides, dilations) = (pair(call, "stride", 1)?, pair(call, "dilation", 1)?);
    let [rows, columns] = pair(call, "pad", 0)?;
    let pads = [rows, columns, rows, columns];
    let attributes = [
        ("strides", Attribute::Ints(&strides)),
        ("dilations", Attribute::Ints(&dilations)),
        ("pads", Attribute::Ints(&pads)),
        ("group", Attribute::Int(call.int("groups", 1)?)),
        ("offset_group", Attribute::Int(call.int("offset_groups", 1)?)),
    ];
    let value = call.op("DeformConv", &[&x, &weight, &offset, &bias, &mask], &attributes);
    call.result(value)
}
