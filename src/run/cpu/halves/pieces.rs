//! Operations on halves, piece by piece: operands are widened, the operation runs in f32, and its results are
//! narrowed. How large pieces are is said in [`crate::kernel::pieces`].

use crate::error::{Error, Result};
use crate::ir::{DType, MAX_AXES, Op};
use crate::kernel::pieces::{Cut, Role, Whole, lead_of};

use super::super::dispatch;
use super::super::stored::{Stored, narrow, widen};
use super::super::team::Team;
use super::super::view::{View, ViewMut, bytes_of, bytes_of_mut, from_bytes, take};
use super::{with_half, with_wide};

/// Most operands, or results, of such an operation: a recurrent layer's.
const MOST: usize = 6;

/// Runs an operation of any kind.
pub(super) fn run(
    team: &Team<'_>,
    op: &Op,
    inputs: &[View<'_>],
    outputs: &mut [ViewMut<'_>],
    workspace: &mut [u8],
) -> Result<()> {
    if inputs.is_empty() || inputs.len() > MOST || outputs.len() > MOST {
        return Err(Error::Internal(format!("operands of {}", op.name())));
    }
    // On the stack: nothing is allocated while a plan runs.
    let whole = |dims, dtype| Whole::<[i64]> { sizes: dims, dtype };
    let mut wholes = [whole(&[][..], DType::F32); 2 * MOST];
    for (slot, view) in wholes.iter_mut().zip(inputs) {
        *slot = whole(view.dims, view.dtype);
    }
    for (slot, view) in wholes[inputs.len()..].iter_mut().zip(&*outputs) {
        *slot = whole(view.dims, view.dtype);
    }
    let (operands, results) = wholes[..inputs.len() + outputs.len()].split_at(inputs.len());
    let cut = Cut::new(op, operands, results);
    let planned = cut.planned() as usize;
    if planned > workspace.len() {
        return Err(Error::Internal(format!("a workspace of {} bytes for {planned}", workspace.len())));
    }
    let (own, rest) = workspace.split_at_mut(planned);
    let first = operands[0].sizes;
    let mut regions = [Region::EMPTY; 2 * MOST];
    let roles = (0..operands.len()).map(Role::Operand).chain((0..results.len()).map(Role::Result));
    for ((region, role), whole) in regions.iter_mut().zip(roles).zip(operands.iter().chain(results)) {
        *region = Region::new(op, role, first, whole.sizes)?;
    }
    let mut walk = Walk { cut, first, at: [0; MAX_AXES], done: false };
    let mut all = |area: &mut [u8]| -> Result<()> {
        while let Some(corner) = walk.next() {
            regions.iter_mut().for_each(|region| region.move_to(&corner, &walk));
            let tensors = Tensors { inputs, outputs: &mut *outputs };
            run_piece(team, op, tensors, &regions, area, &mut *rest)?;
        }
        Ok(())
    };
    if planned > 0 { all(own) } else { with_wide(all) }
}

/// Where pieces begin, one after the other.
struct Walk<'a> {
    cut: Cut,
    first: &'a [i64],
    at: [u64; MAX_AXES],
    done: bool,
}

impl Walk<'_> {
    /// The next piece's corner along the axes of the first operand; none after the last.
    fn next(&mut self) -> Option<[u64; MAX_AXES]> {
        if self.done {
            return None;
        }
        let corner = self.at;
        for axis in (0..self.first.len()).rev() {
            self.at[axis] += self.cut.extents[axis];
            if self.at[axis] < self.first[axis].max(0).unsigned_abs() {
                return Some(corner);
            }
            self.at[axis] = 0;
        }
        self.done = true;
        Some(corner)
    }
}

/// What a piece has of a tensor.
#[derive(Clone, Copy)]
struct Region {
    rank: usize,
    /// By axis: of the whole tensor, and of the piece.
    whole: [i64; MAX_AXES],
    sizes: [i64; MAX_AXES],
    /// Where the piece begins.
    corner: [usize; MAX_AXES],
    /// The axis of the first operand that it is cut along.
    lead: [Option<u8>; MAX_AXES],
}

impl Region {
    const EMPTY: Self = Self {
        rank: 0,
        whole: [0; MAX_AXES],
        sizes: [0; MAX_AXES],
        corner: [0; MAX_AXES],
        lead: [None; MAX_AXES],
    };

    fn new(op: &Op, role: Role, first: &[i64], own: &[i64]) -> Result<Self> {
        let mut region = Self { rank: own.len(), ..Self::EMPTY };
        if own.len() > MAX_AXES {
            return Err(Error::Internal(format!("a tensor of more than {MAX_AXES} axes")));
        }
        region.whole[..own.len()].copy_from_slice(own);
        for axis in 0..own.len() {
            region.lead[axis] = lead_of(op, role, first, own, axis).map(|lead| lead as u8);
        }
        Ok(region)
    }

    fn move_to(&mut self, corner: &[u64; MAX_AXES], walk: &Walk<'_>) {
        for axis in 0..self.rank {
            let all = self.whole[axis];
            (self.corner[axis], self.sizes[axis]) = match self.lead[axis].map(usize::from) {
                None => (0, all),
                Some(lead) => {
                    let begin = corner[lead] as i64;
                    (begin as usize, (walk.cut.extents[lead] as i64).min(all - begin))
                }
            };
        }
    }

    fn dims(&self) -> &[i64] {
        &self.sizes[..self.rank]
    }

    fn count(&self) -> usize {
        self.dims().iter().map(|&size| size.max(0) as usize).product()
    }

    fn is_cut(&self) -> bool {
        self.dims() != &self.whole[..self.rank]
    }

    /// Calls `each` with every run of neighbours: where it begins in the tensor and in the piece, and its length.
    fn runs(&self, mut each: impl FnMut(usize, usize, usize)) {
        let count = self.count();
        // Axes that are whole go with the one before them.
        let mut split = self.rank;
        let mut run = 1usize;
        while split > 0 {
            split -= 1;
            run *= self.sizes[split] as usize;
            if self.sizes[split] != self.whole[split] {
                break;
            }
        }
        let inner: usize = self.whole[split..self.rank].iter().skip(1).map(|&size| size as usize).product();
        let first = if self.rank == 0 { 0 } else { self.corner[split] * inner };
        for (number, at) in (0..count).step_by(run.max(1)).enumerate() {
            let (mut rest, mut start, mut step) = (number, first, 1usize);
            step *= self.whole[split..self.rank].iter().map(|&size| size as usize).product::<usize>();
            for axis in (0..split).rev() {
                let size = self.sizes[axis] as usize;
                start += (self.corner[axis] + rest % size) * step;
                rest /= size;
                step *= self.whole[axis] as usize;
            }
            each(start, at, run);
        }
    }
}

/// All of an operation's tensors.
struct Tensors<'t, 'i, 'o> {
    inputs: &'t [View<'i>],
    outputs: &'t mut [ViewMut<'o>],
}

/// Runs the operation on what the regions are, those of the inputs first.
fn run_piece(
    team: &Team<'_>,
    op: &Op,
    Tensors { inputs, outputs }: Tensors<'_, '_, '_>,
    regions: &[Region; 2 * MOST],
    mut area: &mut [u8],
    workspace: &mut [u8],
) -> Result<()> {
    let (of_inputs, of_outputs) = regions.split_at(inputs.len());
    let count = outputs.len();
    let mut operands = [View { dtype: DType::F32, dims: &[], bytes: &[], packed: false, zeros: false }; MOST];
    for ((view, region), slot) in inputs.iter().zip(of_inputs).zip(&mut operands) {
        *slot = operand(view, region, &mut area)?;
    }
    let mut made: [Option<&mut [u8]>; MOST] = Default::default();
    for ((view, region), slot) in outputs.iter().zip(of_outputs).zip(&mut made) {
        *slot = result_area(view.dtype, region, &mut area)?;
    }
    let mut targets: [ViewMut<'_>; MOST] =
        std::array::from_fn(|_| ViewMut { dtype: DType::F32, dims: &[], bytes: &mut [], epilogue: None });
    for (((view, region), made), slot) in outputs.iter_mut().zip(of_outputs).zip(&mut made).zip(&mut targets)
    {
        let dtype = if view.dtype.is_half() { DType::F32 } else { view.dtype };
        let bytes = match made {
            Some(made) => &mut **made,
            None => &mut *view.bytes,
        };
        *slot = ViewMut { dtype, dims: region.dims(), bytes, epilogue: None };
    }
    dispatch(team, op, &operands[..inputs.len()], &mut targets[..count], workspace)?;
    // Narrowed when the piece is complete: each element is rounded once.
    for ((view, region), made) in outputs.iter_mut().zip(of_outputs).zip(made) {
        if let Some(made) = made {
            store(made, region, view)?;
        }
    }
    Ok(())
}

/// What a piece has of an operand: halves widened and parts copied, both into the area; else where it is.
fn operand<'a, 'w: 'a>(view: &View<'a>, region: &'a Region, area: &mut &'w mut [u8]) -> Result<View<'a>> {
    let (bytes, dtype) = match view.dtype {
        half if half.is_half() => {
            let wide = take::<f32>(area, region.count())?;
            with_half!(half, S => gather::<S>(view, region, wide)?, other => ());
            (bytes_of(wide), DType::F32)
        }
        other if region.is_cut() => {
            let size = other.size() as usize;
            let bytes = take::<u8>(area, region.count() * size)?;
            region.runs(|from, to, run| {
                bytes[to * size..][..run * size].copy_from_slice(&view.bytes[from * size..][..run * size]);
            });
            (&*bytes, other)
        }
        other => (view.bytes, other),
    };
    Ok(View { dtype, dims: region.dims(), bytes, packed: false, zeros: false })
}

/// Where a piece of a result is made; none where it is made in the result itself.
fn result_area<'a>(dtype: DType, region: &Region, area: &mut &'a mut [u8]) -> Result<Option<&'a mut [u8]>> {
    Ok(match dtype {
        half if half.is_half() => Some(bytes_of_mut(take::<f32>(area, region.count())?)),
        other if region.is_cut() => Some(take::<u8>(area, region.count() * other.size() as usize)?),
        _ => None,
    })
}

/// Puts a piece that was made in an area of its own where it belongs in the result.
fn store(made: &[u8], region: &Region, view: &mut ViewMut<'_>) -> Result<()> {
    match view.dtype {
        half if half.is_half() => {
            with_half!(half, S => scatter::<S>(from_bytes(made)?, region, view)?, other => ());
        }
        other => {
            let size = other.size() as usize;
            region.runs(|to, from, run| {
                view.bytes[to * size..][..run * size].copy_from_slice(&made[from * size..][..run * size]);
            });
        }
    }
    Ok(())
}

fn gather<S: Stored>(view: &View<'_>, region: &Region, to: &mut [f32]) -> Result<()> {
    let whole = view.slice::<S>()?;
    region.runs(|from, at, run| widen(&whole[from..][..run], &mut to[at..]));
    Ok(())
}

fn scatter<S: Stored>(made: &[f32], region: &Region, view: &mut ViewMut<'_>) -> Result<()> {
    let whole = view.slice::<S>()?;
    region.runs(|to, at, run| narrow(&made[at..][..run], &mut whole[to..]));
    Ok(())
}
