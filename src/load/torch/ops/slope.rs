//! Values whose gradients are not those of how they are computed.

use super::super::call::Call;

/// A value with the gradient of another of its sizes, which is finite.
pub(super) fn with_gradient_of(call: &mut Call<'_, '_>, value: &str, other: &str) -> String {
    let [value, fixed] = [value, other].map(|value| call.plain("StopGradient", &[value]));
    // Exactly 0: the value stays what it is.
    let nothing = call.plain("Sub", &[other, &fixed]);
    call.plain("Add", &[&value, &nothing])
}
