//! The structure through which a template reads a product's operands and hands over its sums.

use super::super::map::{neighbours, stored_beside};
use super::super::storage;
use super::super::writer::Writer;
use super::form::{Read, WIDE};
use super::reduced::{early_loads, reduced_rows};
use super::{Form, Listing, Product, Side};
use crate::kernel::program::{self, Expr, ExprId, Patches, Var};

impl<'a> Product<'a> {
    /// The structure through which the template reads operands and hands over sums.
    pub(super) fn operands(&self, listing: &mut Listing) {
        let Self { b, m, n, k, ty, index_ty, .. } = self;
        listing.line("struct KERNEL_operands {");
        listing.line(&format!("  typedef {ty} T;"));
        listing.line(&format!("  typedef {index_ty} I;"));
        listing.line(&format!("  static const i64 BATCH = {b}, M = {m}, N = {n}, K = {k};"));
        for (position, arg) in self.program.args.iter().enumerate() {
            let constant = if arg.written { "" } else { "const " };
            listing.line(&format!("  {constant}{}* a{position};", storage(arg.dtype)));
        }
        if let (Form::Patches(_) | Form::Windows(_), Some(patches)) = (self.form, self.patches) {
            self.patch_operands(listing, patches);
            return;
        }
        if self.reduces {
            listing.line(&format!("  {ty}* rows;"));
            listing.text.push_str(&reduced_rows(self.program, index_ty, self.call().threads.into()));
            listing.line("  DEVICE T left(I b, I m, I k) const { return rows[m * (I)K + k]; }");
            listing.line(
                "  DEVICE const T* left_wide(I b, I m, I k, bool& inside) const { return rows + m * (I)K + k; }",
            );
        } else {
            self.operand(listing, Side::Left);
        }
        self.operand(listing, Side::Right);
        if matches!(self.form, Form::Dots { .. } | Form::Columns { .. }) {
            self.early_stores(listing);
        } else {
            if matches!(self.form, Form::Tensor { .. } | Form::Groups { .. }) {
                self.stores_beside(listing, Some(WIDE));
            }
            let mut writer = self.method_of_results();
            writer.stores(self.stores);
            listing.method("void store(I b, I m, I n, T hero)", &writer);
        }
        listing.line("};");
    }

    /// The rest of the structure for images, windows and weights.
    fn patch_operands(&self, listing: &mut Listing, patches: &Patches) {
        let [images, rows, columns, channels] = patches.element.map(|var| self.program.exprs.extent(var));
        let is_last = patches.side == program::Side::Left;
        let (outer, weights) = if is_last { (self.n, self.right) } else { (self.m, self.left) };
        let [made_rows, made_columns] = patches.places;
        listing.line(&format!(
            "  static const int IMAGES = {images}, ROWS = {rows}, COLUMNS = {columns}, CHANNELS = {channels};"
        ));
        listing.line(&format!(
            "  static const int MADE_ROWS = {made_rows}, MADE_COLUMNS = {made_columns}, OUTER = {outer};"
        ));
        let of_window = [
            ("WINDOW", patches.kernel),
            ("STRIDE", patches.strides),
            ("DILATION", patches.dilations),
            ("PAD", patches.pads),
        ];
        for (name, [rows, columns]) in of_window {
            listing.line(&format!("  static const int {name}_ROWS = {rows}, {name}_COLUMNS = {columns};"));
        }
        listing.line(&format!("  static const bool CHANNELS_INSIDE = {};", patches.channels_inside));
        let names = ["image", "row", "column", "channel"];
        let vars: Vec<(Var, &str)> = patches.element.into_iter().zip(names).collect();
        let mut writer = self.method(&vars);
        let value = writer.value(patches.value);
        writer.line(&format!("return {value};"));
        listing.method("T element(I image, I row, I column, I channel)", &writer);
        let of_result = if is_last { self.column } else { self.row };
        let mut writer = self.method(&[(self.batch, "0"), (self.inner, "k"), (of_result, "n")]);
        let value = writer.value(weights);
        writer.line(&format!("return {value};"));
        listing.method("T weight(I k, I n)", &writer);
        let single = matches!(self.form, Form::Windows(_));
        match (single, is_last) {
            (true, true) => self.stores_beside(listing, Some(4)),
            (true, false) => self.stores_beside(listing, Some(8)),
            (false, true) => self.stores_beside(listing, Some(WIDE)),
            (false, false) => self.stores_beside(listing, None),
        }
        let mut writer = self.method_of_results();
        writer.stores(self.stores);
        listing.method("void store(I b, I m, I n, T hero)", &writer);
        listing.line("};");
    }

    /// What is done with so many neighbours of a row's sums at once, and whether it is.
    fn stores_beside(&self, listing: &mut Listing, lanes: Option<i64>) {
        let others = [self.batch, self.row];
        let beside = |lanes| stored_beside(self.program, self.column, &others, self.stores, lanes);
        let found = lanes.and_then(beside).filter(|_| self.runs_are_whole());
        listing.line(&format!("  static const bool BESIDE = {};", found.is_some()));
        let (Some(vectors), Some(lanes)) = (found, lanes) else { return };
        let mut writer = Writer::method(&vectors.program, self.index_ty);
        writer.bind(self.batch, "b");
        writer.bind(self.row, "m");
        vectors.write(&mut writer, "part", Some("const T hero = sums[lane];"));
        listing.method(&format!("void store_beside(I b, I m, I part, const T (&sums)[{lanes}])"), &writer);
    }

    /// Whether runs of positions are all of one row, where a form has such.
    fn runs_are_whole(&self) -> bool {
        let Some(patches) = self.patches.filter(|_| matches!(self.form, Form::Windows(_))) else {
            return true;
        };
        patches.side == program::Side::Left || patches.places[1] % WIDE == 0
    }

    fn method_of_results(&self) -> Writer<'a> {
        self.method(&[(self.batch, "b"), (self.row, "m"), (self.column, "n")])
    }

    /// Stores in two steps: what is read beside the sums, as biases are, is read before these are made.
    fn early_stores(&self, listing: &mut Listing) {
        let known = [self.batch, self.row, self.column];
        let roots: Vec<ExprId> =
            self.stores.iter().flat_map(|store| store.guard.into_iter().chain([store.value])).collect();
        let loads = early_loads(self.program, &roots, &known);
        let mut writer = self.method_of_results();
        let mut last = self.method_of_results();
        listing.line("  struct Beside {");
        for (position, &load) in loads.iter().enumerate() {
            listing.line(&format!("    {} v{position};", writer.type_of(load)));
            let value = writer.value(load);
            writer.line(&format!("to.v{position} = {value};"));
            last.name(load, format!("beside.v{position}"));
        }
        listing.line("  };");
        listing.method("void read(I b, I m, I n, Beside& to)", &writer);
        last.stores(self.stores);
        listing.method("void store(I b, I m, I n, T hero, const Beside& beside)", &last);
    }

    /// The methods that give an element of an operand, and neighbours where the form reads these at once.
    fn operand(&self, listing: &mut Listing, side: Side) {
        let (name, id, vars) = match side {
            Side::Left => ("left", self.left, [(self.batch, "b"), (self.row, "m"), (self.inner, "k")]),
            Side::Right => ("right", self.right, [(self.batch, "b"), (self.inner, "k"), (self.column, "n")]),
        };
        let [x, y, z] = vars.map(|(_, name)| name);
        let mut writer = self.method(&vars);
        let value = writer.value(id);
        writer.line(&format!("return {value};"));
        listing.method(&format!("T {name}(I {x}, I {y}, I {z})"), &writer);

        if let Form::Tensor { read, .. } = self.form
            && read[usize::from(side == Side::Right)] == Read::Loose
            && let Expr::Load { arg, index, .. } = *self.program.exprs.get(id)
        {
            let mut writer = self.method(&vars);
            let index = writer.value(index);
            writer.line(&format!("return (const u16*)(a{arg} + {index});"));
            listing.method(&format!("const u16* {name}_loose(I {x}, I {y}, I {z})"), &writer);
        }
        let Some((along, lanes)) = self.read_at_once(side) else { return };
        let Some((arg, index, guard)) = neighbours(self.program, id, along, lanes) else { return };
        let mut writer = self.method(&vars);
        if let Some(guard) = guard {
            let guard = writer.value(guard);
            writer.line(&format!("inside = inside && {guard};"));
        }
        let index = writer.value(index);
        writer.line(&format!("return (const u16*)(inside ? a{arg} + {index} : a{arg});"));
        listing.method(&format!("const u16* {name}_wide(I {x}, I {y}, I {z}, bool& inside)"), &writer);
    }

    /// Along which variable the form reads how many elements of an operand at once, if it does.
    fn read_at_once(&self, side: Side) -> Option<(Var, i64)> {
        let (position, own, along) = match side {
            Side::Left => (0, self.row, self.left_along),
            Side::Right => (1, self.column, self.right_along),
        };
        match self.form {
            Form::Tensor { read, .. } => {
                (read[position] == Read::Wide).then_some((if along { self.inner } else { own }, WIDE))
            }
            Form::Dots { wide } => wide[position].then_some((self.inner, self.lanes())),
            Form::Columns { wide } => (wide && side == Side::Right).then_some((own, self.lanes())),
            Form::Groups { .. } => Some((if along { self.inner } else { own }, WIDE)),
            Form::Patches(_) | Form::Windows(_) | Form::Single { .. } | Form::Tiled => None,
        }
    }

    fn method(&self, vars: &[(Var, &str)]) -> Writer<'a> {
        let mut writer = Writer::method(self.program, self.index_ty);
        vars.iter().for_each(|&(var, name)| writer.bind(var, name));
        writer
    }
}
