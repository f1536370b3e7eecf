//! A stack of blocks up to its last hidden state: blocks, norms, attention. One description of a block
//! serves all families; what differs is data ([`Settings`]).

use serde_json::{Value, json};

use super::attention::{Attending, Heads, Masks, Sides, Sight};
use super::net::{Features, Net, Norm};
use super::rotary::Tables;
use super::settings::{
    InnerNorms, Layer, Names, Norms, Positions, Projections, Residual, Sections, Settings,
};
use super::{distances, slopes};
use crate::error::Result;

/// What a network's layers are written from.
pub(super) struct Blocks<'a> {
    pub(super) settings: &'a Settings,
    /// Stands before all names.
    pub(super) prefix: &'a str,
    /// How long its sequence is.
    pub(super) sides: Sides,
}

/// What enters the first block.
pub(super) struct Positioned {
    /// `[batch, rows, hidden]`.
    pub(super) hidden: String,
    /// The caller's positions, `[batch, rows]`, where it has any.
    pub(super) positions: Option<String>,
}

impl Positioned {
    /// What has positions in it already.
    pub(super) fn whole(hidden: String) -> Self {
        Self { hidden, positions: None }
    }
}

/// What the layers are written to, and read in common.
pub(super) struct Shared<'n> {
    pub(super) net: &'n mut Net,
    masks: Masks,
    /// Of rotations.
    tables: Vec<Tables>,
    /// Added to all scores.
    added: Option<String>,
    context: Option<Context>,
}

/// Another stack's result, which blocks attend to.
pub(super) struct Context {
    /// `[batch, keys, hidden]`.
    pub(super) hidden: String,
    pub(super) masks: Masks,
}

impl Blocks<'_> {
    pub(super) fn names(&self) -> &Names {
        &self.settings.names
    }

    /// Writes the blocks over embeddings; the last hidden state, `[batch, rows, hidden]`. `shown`: the
    /// caller's mask, if it has one. Error: rotations of an odd width.
    pub(super) fn write(
        &self,
        net: &mut Net,
        embedded: Positioned,
        shown: Option<&'static str>,
    ) -> Result<String> {
        self.write_over(net, embedded, shown, None)
    }

    /// The same, where blocks attend to another stack's result too.
    pub(super) fn write_over(
        &self,
        net: &mut Net,
        embedded: Positioned,
        shown: Option<&'static str>,
        context: Option<Context>,
    ) -> Result<String> {
        let masks = Masks::new(net, self.sides.clone(), shown);
        let mut x = embedded.hidden;
        let positions = embedded.positions.as_deref();
        let (mut tables, mut added) = (Vec::new(), None);
        match &self.settings.positions {
            Positions::Learnt(_) => {}
            Positions::Rotary(rotaries) => {
                for rotary in rotaries {
                    tables.push(rotary.tables(net, &self.sides.rows, positions)?);
                }
            }
            Positions::Slopes(slopes) => {
                let scale = self.settings.layers.first().map_or(1.0, |layer| layer.scale);
                added = Some(slopes::write(net, *slopes, self.settings.heads, scale, &masks));
            }
            Positions::Distances(distances) => {
                let table = format!("{}{}.weight", self.prefix, distances.table);
                added = Some(distances::write(net, distances, &table, self.settings.heads, &masks));
            }
        }
        let mut shared = Shared { net, masks, tables, added, context };
        for (number, layer) in self.settings.layers.iter().enumerate() {
            let name = format!("{}{}.{number}", self.prefix, self.names().layer);
            x = self.block(&mut shared, &name, layer, &x);
        }
        let x = self.norm(net, self.prefix, self.names().last_norm, &x);
        Ok(self.narrowed(net, &x))
    }

    pub(super) fn norm(&self, net: &mut Net, prefix: &str, name: Option<&str>, x: &str) -> String {
        match name {
            Some(name) => net.norm(&format!("{prefix}{name}"), x, self.settings.hidden, self.settings.norm),
            None => x.to_owned(),
        }
    }

    fn block(&self, shared: &mut Shared<'_>, name: &str, layer: &Layer, x: &str) -> String {
        let inside = format!("{name}.");
        let wiring = &self.names().wiring;
        let [first, second] = [&wiring.attention, &wiring.feed];
        let read = self.norm(shared.net, &inside, first.before, x);
        let y = self.attended(shared, &inside, layer, &read);
        let y = self.norm(shared.net, &inside, first.within, &y);
        let factor = self.settings.factor_of_parts;
        let y = shared.net.scaled(&format!("{inside}attended.scaled"), &y, factor);
        // Both parts read the stream as it was before the block (GPT-J), in place of one after the other.
        if wiring.residual == Residual::Parallel {
            let read = match second.before {
                None => read,
                own => self.norm(shared.net, &inside, own, x),
            };
            let z = self.feed(shared.net, &inside, &layer.feed, &read);
            let z = shared.net.scaled(&format!("{inside}out.scaled"), &z, factor);
            let both = shared.net.sum(&format!("{name}.parts"), &y, &z);
            return shared.net.sum(&format!("{name}.out"), &both, x);
        }
        let x = self.added(shared.net, first, [&inside, "attended"], [x, &read, &y]);
        let x = self.crossed(shared, &inside, layer, x);
        let read = self.norm(shared.net, &inside, second.before, &x);
        let y = self.feed(shared.net, &inside, &layer.feed, &read);
        let y = self.norm(shared.net, &inside, second.within, &y);
        let y = shared.net.scaled(&format!("{inside}out.scaled"), &y, factor);
        self.added(shared.net, second, [&inside, "out"], [&x, &read, &y])
    }

    /// What a part gives, added to what it is added to, and the norm of that. `values`: the stream, the part's
    /// input behind its norm, its result.
    fn added(&self, net: &mut Net, norms: &Norms, name: [&str; 2], values: [&str; 3]) -> String {
        let [inside, sum] = name;
        let [stream, read, y] = values;
        let normed = self.names().wiring.residual == Residual::Normed;
        let x = net.sum(&format!("{inside}{sum}"), if normed { read } else { stream }, y);
        self.norm(net, inside, norms.behind, &x)
    }

    fn attended(&self, shared: &mut Shared<'_>, inside: &str, layer: &Layer, x: &str) -> String {
        let Self { settings, .. } = *self;
        let names = self.names();
        let heads = settings.heads;
        let name = format!("{inside}{}", names.attention);
        let qkv = self.projected(shared.net, inside, x);
        let sinks = names.sinks.map(|sinks| {
            let sinks = shared.net.param(&format!("{inside}{sinks}"), &[heads.count], "zeros");
            let shape = json!({"shape": [heads.shared, heads.count / heads.shared, 1, 1]});
            shared.net.node(&format!("{name}.sinks_by_head"), "reshape", &[&sinks], shape)
        });
        let attending = Attending {
            name: &name,
            heads,
            scale: layer.scale,
            cap: settings.cap,
            added: shared.added.as_deref(),
            sinks: sinks.as_deref(),
            sight: layer.sight,
            rotary: shared.tables.get(layer.rotary),
        };
        let y = attending.write(shared.net, &mut shared.masks, qkv.each_ref().map(String::as_str));
        let features = Features { from: heads.count * heads.width, to: settings.hidden };
        shared.net.linear(&format!("{inside}{}", names.out), &y, features, settings.biases.out, names.order)
    }

    /// The stream behind attention to another stack's result, where there is one.
    fn crossed(&self, shared: &mut Shared<'_>, inside: &str, layer: &Layer, x: String) -> String {
        let Self { settings, .. } = *self;
        let Shared { net, context, .. } = shared;
        let (Some(cross), Some(context)) = (self.names().cross, context) else { return x };
        let Heads { count, width, .. } = settings.heads;
        let name = format!("{inside}{}", cross.attention);
        let order = self.names().order;
        let read = self.norm(net, inside, cross.norms.before, &x);
        let Sides { batch, rows, keys, .. } = context.masks.sides.clone();
        let sources = [(&read, &rows), (&context.hidden, &keys), (&context.hidden, &keys)];
        let qkv: [String; 3] = std::array::from_fn(|part| {
            let (source, length) = sources[part];
            let features = Features { from: settings.hidden, to: count * width };
            let layer = format!("{inside}{}", cross.projections[part]);
            let y = net.linear(&layer, source, features, settings.biases.qkv[part], order);
            let shape = json!({"shape": [batch, length, count, 1, width]});
            net.node(&format!("{name}.{}_heads", ["q", "k", "v"][part]), "reshape", &[&y], shape)
        });
        let attending = Attending {
            name: &name,
            heads: Heads { count, shared: count, width },
            scale: layer.scale,
            cap: None,
            added: None,
            sinks: None,
            sight: Sight::Everything,
            rotary: None,
        };
        let y = attending.write(net, &mut context.masks, qkv.each_ref().map(String::as_str));
        let features = Features { from: count * width, to: settings.hidden };
        let y = net.linear(&format!("{inside}{}", cross.out), &y, features, settings.biases.out, order);
        self.added(net, &cross.norms, [inside, "crossed"], [&x, &read, &y])
    }

    /// Queries, keys and values: `[batch, rows, shared, per, width]`.
    fn projected(&self, net: &mut Net, inside: &str, x: &str) -> [String; 3] {
        let Self { settings, .. } = *self;
        let names = self.names();
        let Heads { count, shared, width } = settings.heads;
        let counts = [count, shared, shared];
        let flat = match names.projections {
            Projections::Apart(layers) => std::array::from_fn(|part| {
                let features = Features { from: settings.hidden, to: counts[part] * width };
                let name = format!("{inside}{}", layers[part]);
                net.linear(&name, x, features, settings.biases.qkv[part], names.order)
            }),
            Projections::Joined(layer, sections) => {
                let features = Features { from: settings.hidden, to: (count + 2 * shared) * width };
                let bias = settings.biases.qkv[0];
                let joined = net.linear(&format!("{inside}{layer}"), x, features, bias, names.order);
                match sections {
                    Sections::Heads => return self.sections(net, inside, &joined),
                    Sections::Kinds => std::array::from_fn(|part| {
                        let start: u64 = counts[..part].iter().map(|count| count * width).sum();
                        let attributes = json!({
                            "starts": [0, 0, start],
                            "sizes": [self.sides.batch, self.sides.rows, counts[part] * width],
                        });
                        let name = self.part_name(inside, part);
                        net.node(&name, "slice", &[&joined], attributes)
                    }),
                }
            }
        };
        let flat = self.jointly_normed(net, inside, flat);
        let mut part = 0;
        flat.map(|x| {
            let shape = json!({"shape": self.by_head(part)});
            let name = format!("{inside}{}.{}_heads", names.attention, ["q", "k", "v"][part]);
            let x = net.node(&name, "reshape", &[&x], shape);
            part += 1;
            self.normed_by_head(net, inside, part - 1, x)
        })
    }

    fn part_name(&self, inside: &str, part: usize) -> String {
        format!("{inside}{}.{}", self.names().attention, ["query", "key", "value"][part])
    }

    /// Sizes of queries, keys or values by head.
    fn by_head(&self, part: usize) -> Value {
        let Heads { count, shared, width } = self.settings.heads;
        let per = if part == 0 { count / shared } else { 1 };
        json!([self.sides.batch, self.sides.rows, shared, per, width])
    }

    /// Queries, keys and values that lie head of keys by head of keys.
    fn sections(&self, net: &mut Net, inside: &str, joined: &str) -> [String; 3] {
        let Heads { count, shared, width } = self.settings.heads;
        let per = count / shared;
        let shape = json!({"shape": [self.sides.batch, self.sides.rows, shared, per + 2, width]});
        let name = format!("{inside}{}.sections", self.names().attention);
        let sections = net.node(&name, "reshape", &[joined], shape);
        let starts = [0, per, per + 1];
        std::array::from_fn(|part| {
            let attributes = json!({"starts": [0, 0, 0, starts[part], 0], "sizes": self.by_head(part)});
            let x = net.node(&self.part_name(inside, part), "slice", &[&sections], attributes);
            self.normed_by_head(net, inside, part, x)
        })
    }

    /// Queries and keys behind norms of all their heads together.
    fn jointly_normed(&self, net: &mut Net, inside: &str, flat: [String; 3]) -> [String; 3] {
        let InnerNorms::Joint(layers) = self.names().inner_norms else { return flat };
        let Heads { count, shared, width } = self.settings.heads;
        let [q, k, v] = flat;
        let mut norm = |layer: &str, x: &str, heads: u64| {
            net.norm(&format!("{inside}{layer}"), x, heads * width, self.settings.norm)
        };
        [norm(layers[0], &q, count), norm(layers[1], &k, shared), v]
    }

    /// Queries or keys behind norms of each head; values as they are.
    fn normed_by_head(&self, net: &mut Net, inside: &str, part: usize, x: String) -> String {
        let Heads { count, shared, width } = self.settings.heads;
        match self.names().inner_norms {
            InnerNorms::None | InnerNorms::Joint(_) => x,
            InnerNorms::Within(limit) => {
                let name = format!("{inside}{}.{}_within", self.names().attention, ["q", "k", "v"][part]);
                net.within(&name, &x, limit)
            }
            InnerNorms::Head(layers, norm) => match layers.get(part) {
                Some(layer) => net.norm(&format!("{inside}{layer}"), &x, width, norm),
                None => x,
            },
            InnerNorms::Heads(layers, norm) => {
                let Some(layer) = layers.get(part) else { return x };
                let name = format!("{inside}{layer}");
                let heads = if part == 0 { count } else { shared };
                let factors: Vec<String> = (0..heads)
                    .map(|head| net.param(&format!("{name}.norms.{head}.weight"), &[width], "ones"))
                    .collect();
                let factors: Vec<&str> = factors.iter().map(String::as_str).collect();
                let all = net.node(&format!("{name}.factors"), "concat", &factors, json!({"axis": 0}));
                self.normed_with(net, &name, &x, (&all, heads), norm)
            }
            InnerNorms::HeadsTogether(layers, norm) => {
                let Some(layer) = layers.get(part) else { return x };
                let name = format!("{inside}{layer}");
                let heads = if part == 0 { count } else { shared };
                let all = net.param(&format!("{name}.weight"), &[heads, width], "ones");
                self.normed_with(net, &name, &x, (&all, heads), norm)
            }
        }
    }

    /// The norm of each head, times its own of so many factors.
    fn normed_with(
        &self,
        net: &mut Net,
        name: &str,
        x: &str,
        (factors, heads): (&str, u64),
        norm: Norm,
    ) -> String {
        let Heads { shared, width, .. } = self.settings.heads;
        let shape = json!({"shape": [shared, heads / shared, width]});
        let factors = net.node(&format!("{name}.by_head"), "reshape", &[factors], shape);
        let x = net.norm(&format!("{name}.plain"), x, width, norm);
        net.node(name, "mul", &[&x, &factors], json!({}))
    }
}
